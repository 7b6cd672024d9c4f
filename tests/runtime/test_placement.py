"""From a policy to CPUs and devices, on a node that is described here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dragon.infrastructure.node_desc import NodeDescriptor
from dragon.infrastructure.policy import Policy, PolicyError
from dragon.runtime import placement


@pytest.fixture(autouse=True)
def gpu_node(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The run is one node with four CPUs and four NVIDIA GPUs."""
    node = NodeDescriptor(
        host_name="node7.cluster.org",
        h_uid=7,
        ip_addrs=["10.0.0.7"],
        cpus=[0, 1, 2, 3],
        gpus=[0, 1, 2, 3],
        gpu_vendor="nvidia",
        physical_mem=2**30,
    )
    monkeypatch.setattr(placement, "run_nodes", lambda: [node])
    monkeypatch.setattr(placement, "_missing", {})
    return iter([None])


def test_gpus_are_given_through_the_vendors_variable() -> None:
    placed = placement.place(Policy(gpu_affinity=[3, 1], cpu_affinity=[2]))
    assert placed.cpus == [2]
    assert placed.environment == {"CUDA_VISIBLE_DEVICES": "3,1"}


def test_another_variable_can_be_asked_for() -> None:
    placed = placement.place(Policy(gpu_affinity=[0], gpu_env_str="MY_DEVICES"))
    assert placed.environment == {"MY_DEVICES": "0"}


def test_nothing_is_set_where_nothing_is_asked_for() -> None:
    assert placement.place(None)[1:] == ([], {})


@pytest.mark.parametrize("name", ["node7", "node7.cluster.org", "localhost"])
def test_short_and_full_names_mean_the_same_host(name: str) -> None:
    placed = placement.place(Policy(placement=Policy.Placement.HOST_NAME, host_name=name))
    assert placed.node.h_uid == 7


def test_a_host_id_that_the_run_lacks_is_refused() -> None:
    assert placement.place(Policy(placement=Policy.Placement.HOST_ID, host_id=7)).node.h_uid == 7
    with pytest.raises(PolicyError, match=r"host id 8; there is node7\.cluster\.org"):
        placement.place(Policy(placement=Policy.Placement.HOST_ID, host_id=8))


def test_what_is_not_there_is_left_out_and_named_once() -> None:
    with pytest.warns(RuntimeWarning, match=r"no CPUs 4-7 \(it has 0-3\) and no GPUs 9 \(it has 0-3\)"):
        placed = placement.place(Policy(cpu_affinity=list(range(2, 8)), gpu_affinity=[0, 9]))
    assert placed.cpus == [2, 3]
    assert placed.environment == {"CUDA_VISIBLE_DEVICES": "0"}
    placement.place(Policy(cpu_affinity=[4, 5]))  # named already: a second warning would be an error here


def test_several_placements_can_be_warned_of_together() -> None:
    with pytest.warns(RuntimeWarning, match="no CPUs 4, 5 ") as caught:
        place_together(Policy(cpu_affinity=[4]), Policy(cpu_affinity=[5]))
    assert len(caught) == 1


def place_together(*policies: Policy) -> None:
    with placement.one_warning():
        for policy in policies:
            placement.place(policy)


def test_with_strict_it_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAGON_STRICT", "1")
    with pytest.raises(PolicyError, match="no GPUs 9"):
        placement.place(Policy(gpu_affinity=[9]))
