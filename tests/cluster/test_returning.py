"""A node that was declared lost and comes back decides nothing any more: replies that others received since then hold.
Nodes that lose only each other do not continue with their copies forever.
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
    """Stop all that runs at a host; what lets it go on."""
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
def test_a_node_that_comes_back_undoes_nothing(
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


def test_a_copy_that_its_writers_do_not_reach_is_not_read(site: Site, ssh_hosts: SshHosts, tmp_path: Path) -> None:
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


def test_messages_between_nodes_that_lost_each_other_are_not_lost_in_silence(
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
