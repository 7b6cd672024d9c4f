"""The nodes of a run, as its folder lists them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from conftest import SetNodes, described
from dragon.globalservices.node import DragonNodeError
from dragon.native.machine import Node, System, cpu_count, current
from dragon.runtime.nodes import node_at, run_nodes, same_host, write_nodes
from dragon.runtime.run import this_run


def test_a_run_without_a_list_of_nodes_is_this_machine() -> None:
    (node,) = run_nodes()
    assert (node.host_name, node.index) == (os.uname().nodename, 0)


def test_the_system_has_all_nodes(set_nodes: SetNodes) -> None:
    set_nodes(described(0, cpus=2, gpus=0), described(1, cpus=3, gpus=2), own=1)
    system = System()
    assert (system.nnodes, system.nodes) == (2, [100, 101])
    assert cpu_count() == System.cpu_count() == 5
    assert system.primary_node.hostname == "node0.cluster.org"
    assert [p.host_name for p in system.hostname_policies()] == ["node0.cluster.org", "node1.cluster.org"]
    assert [(p.host_name, p.gpu_affinity) for p in system.gpu_policies()] == [
        ("node1.cluster.org", [0]),
        ("node1.cluster.org", [1]),
    ]


def test_a_node_is_found_by_name_id_or_index(set_nodes: SetNodes) -> None:
    set_nodes(described(0), described(1), own=1)
    assert current().hostname == Node("localhost").hostname == Node("node1").hostname == Node(101).hostname
    assert Node("node0").ip == ["10.0.0.0"]
    assert node_at(1).h_uid == 101
    with pytest.raises(DragonNodeError, match=r"no node 'node2'; it has node0\.cluster\.org, node1"):
        Node("node2")
    with pytest.raises(LookupError, match="no node 2"):
        node_at(2)


def test_a_changed_list_of_nodes_is_read_again(set_nodes: SetNodes) -> None:
    set_nodes(described(0), described(1))
    assert run_nodes() is run_nodes()
    write_nodes(this_run().folder, [described(1)])
    assert [node.index for node in run_nodes()] == [1]


def test_a_list_of_nodes_is_read_as_it_was_written(set_nodes: SetNodes) -> None:
    node = described(0, gpu_vendor="intel", real_cpus=[1], gpu_variable="X")._replace(gpus=[0, 0.0, 1.1])
    set_nodes(node)
    assert run_nodes() == [node]
    assert [type(gpu) for gpu in run_nodes()[0].gpus] == [int, float, float]


def test_a_process_that_is_not_yet_a_member_reads_the_list_of_its_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write_nodes(tmp_path, [described(0), described(1)])
    monkeypatch.setattr("dragon.runtime.nodes.current_run", lambda: None)
    monkeypatch.setenv("DRAGON_RUN", str(tmp_path))
    assert len(run_nodes()) == 2


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("n1", "n1.a.org", True),
        ("N1.A.org", "n1.a", True),
        ("n1.a.org", "n1.b.org", False),
        ("n1", "n11", False),
        ("n11.a", "n1.a", False),
    ],
)
def test_short_and_full_names_of_the_same_host_match(one: str, other: str, same: bool) -> None:
    assert same_host(one, other) is same is same_host(other, one)
