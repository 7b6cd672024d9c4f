"""The resources of a node in the allocation of the job."""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path

import pytest

from dragon.globalservices import node as node_service
from dragon.globalservices.node import DragonNodeError
from dragon.infrastructure import node_desc, variables
from dragon.native.machine import Node, System, cpu_count, current


def test_a_node_has_the_name_of_its_host() -> None:
    assert current().hostname == socket.gethostname()
    assert Node("localhost").h_uid == Node(System().nodes[0]).h_uid == current().h_uid


def test_the_addresses_of_a_node_are_found_without_a_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_up(*_: object) -> None:
        raise AssertionError("a name was looked up, which may take half a minute without a network")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert [ipaddress.ip_address(address) for address in node_desc.describe_this_node().ip_addrs]


def test_the_error_for_an_unknown_node_lists_the_nodes() -> None:
    with pytest.raises(DragonNodeError, match=socket.gethostname()):
        Node("unknown")


def test_the_policies_of_a_system_select_its_nodes() -> None:
    system = System()
    assert system.nnodes == len(system.nodes) == len(node_service.get_list()) == 1
    assert [policy.host_name for policy in system.hostname_policies()] == [current().hostname]
    assert len(system.gpu_policies()) == current().num_gpus
    assert cpu_count() == System.cpu_count() == current().num_cpus


def test_the_cpu_affinity_of_the_process_limits_the_cpus() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert node_desc.find_cpus() == [min(before)]
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(("text", "size"), [("1024", 1024), ("2K", 2048), ("1.5G", 3 << 29), ("10MiB", 10 << 20)])
def test_sizes_with_units_are_parsed(text: str, size: int) -> None:
    assert variables.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "-1", "0", "1X"])
def test_invalid_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        variables.parse_size(text)


def test_the_default_limit_of_the_arena_is_at_most_half_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(variables.ARENA_SIZE, raising=False)
    total = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    assert 0 < variables.arena_limit() <= total // 2 + 1
