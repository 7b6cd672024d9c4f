"""The same programs, run by the `dragon` command over three nodes of each kind of cluster."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from conftest import Site
from peers import Peer, front_end, hear, needs_agent

PROGRAMS = Path(__file__).parent / "programs"

pytestmark = needs_agent


@pytest.fixture(params=["simulated", "slurm", "ssh_hosts", "ray_cluster", "pods"])
def peer(request: pytest.FixtureRequest) -> Peer:
    """Each kind of cluster in turn."""
    found: Peer = request.getfixturevalue(request.param)
    return found


def finish(process: subprocess.Popen[str], timeout: float = 100) -> tuple[int, str, str]:
    """Wait for a process; return its exit code and its output without the warning about late nodes."""
    out, err = process.communicate(timeout=timeout)
    lines = [line for line in err.splitlines(keepends=True) if "dragon.frontend: waiting up to" not in line]
    return process.returncode, out, "".join(lines)


def test_processes_run_on_all_nodes(site: Site, peer: Peer) -> None:
    code, out, err = finish(peer.start(site, PROGRAMS / "hello.py"))
    assert out == f"head {peer.nodes[0]}\nnodes {' '.join(peer.nodes)}\n", err
    assert (code, err) == (0, "")


def test_objects_of_multiprocessing_are_shared_over_all_nodes(site: Site, peer: Peer) -> None:
    assert finish(peer.start(site, PROGRAMS / "everywhere.py")) == (0, "ok\n", "")


def test_the_exit_code_is_that_of_the_program(site: Site, peer: Peer) -> None:
    assert finish(peer.start(site, "sh", "-c", "echo out; echo err >&2; exit 7")) == (7, "out\n", "err\n")


def test_an_import_error_of_the_program_is_shown(site: Site, peer: Peer) -> None:
    code, out, err = finish(peer.start(site, site.write("import nothing_of_that_name")))
    assert (code, out) == (1, "")
    assert "ModuleNotFoundError" in err


def test_ctrl_c_ends_all_processes(site: Site, peer: Peer) -> None:
    process = peer.start(site, PROGRAMS / "stay.py")
    assert sorted(hear(site, process, 3)) == [f"here: {name}" for name in peer.nodes]
    front_end(process).send_signal(signal.SIGINT)
    code, _, err = finish(process)
    assert code in (1, 128 + signal.SIGINT), err


def test_no_process_remains_after_the_front_end_was_killed(site: Site, peer: Peer) -> None:
    process = peer.start(site, PROGRAMS / "stay.py")
    assert sorted(hear(site, process, 3)) == [f"here: {name}" for name in peer.nodes]
    front_end(process).kill()
    finish(process)
    site.assert_nothing_left()
