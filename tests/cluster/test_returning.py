"""Nodes that return after they were declared lost, and nodes that lose only each other.

A node that returns makes no decisions: replies that others received in the meantime remain valid. Nodes that lose only
each other do not continue with their copies forever.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from conftest import Site
from peers.ssh import SshHosts

PROGRAMS = Path(__file__).parent.parent / "data" / "programs"


def pause(hosts: SshHosts, name: str) -> Callable[[], None]:
    """Stop all processes of a host; return a function that continues them."""
    stopped = list(hosts.lan.processes(name))
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)

    def go_on() -> None:
        for pid in stopped:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue

    return go_on


@pytest.mark.parametrize(("paused", "away"), [(True, 11.0), (False, 4.5)])
def test_a_node_that_returns_does_not_undo_acknowledged_writes(
    site: Site, ssh_hosts: SshHosts, tmp_path: Path, paused: bool, away: float
) -> None:
    run = ssh_hosts.start(site, "--no-label", PROGRAMS / "returning.py", tmp_path, "25")
    assert run.stdout is not None
    assert run.stdout.readline() == "begun\n"
    time.sleep(2)
    with ExitStack() as undoing:
        if paused:
            undoing.callback(pause(ssh_hosts, "node2"))
        undoing.enter_context(ssh_hosts.lan.cut("node2"))
        time.sleep(away)
    out, err = run.communicate(timeout=100)
    assert out == "checked\n", out + err
    assert run.returncode == 0, err


def test_a_replica_that_its_writers_cannot_reach_is_not_read(site: Site, ssh_hosts: SshHosts, tmp_path: Path) -> None:
    run = ssh_hosts.start(site, "--no-label", PROGRAMS / "parted.py", tmp_path)
    assert run.stdout is not None
    assert run.stdout.readline() == "begun\n"
    time.sleep(1)
    with ssh_hosts.lan.parted("node2", "node3"):
        time.sleep(25)
    (tmp_path / "whole").touch()
    out, err = run.communicate(timeout=100)
    assert out == "the newest value is read\n", out + err
    assert run.returncode == 0, err


def test_lost_messages_between_nodes_that_lost_each_other_are_reported(
    site: Site, ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    run = ssh_hosts.start(site, "--no-label", PROGRAMS / "unreached.py", tmp_path)
    assert run.stdout is not None
    assert run.stdout.readline() == "begun\n"
    with ssh_hosts.lan.parted("node2", "node3"):
        time.sleep(25)
    (tmp_path / "whole").touch()
    out, err = run.communicate(timeout=120)
    assert out == "once told\n", out + err


def test_nodes_that_could_not_reach_each_other_learn_what_ended_meanwhile(
    site: Site, ssh_hosts: SshHosts, tmp_path: Path
) -> None:
    run = ssh_hosts.start(site, "--no-label", PROGRAMS / "apart.py", tmp_path)
    assert run.stdout is not None
    assert [run.stdout.readline() for _ in range(3)] == ["before\n", "held\n", "begun\n"]
    with ssh_hosts.lan.parted("node1", "node2"):
        (tmp_path / "apart").touch()
        time.sleep(9)
    (tmp_path / "whole").touch()
    out, err = run.communicate(timeout=100)
    assert out == "the group has ended\nthe lock is free: True\nafter\nthe output has ended\n", out + err
    assert run.returncode == 0, err
