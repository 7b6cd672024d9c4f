"""`dragon` over three hosts whose network fails or is slow."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from conftest import Site
from peers import await_that, hear, hear_error, needs_agent
from peers.ssh import SshHosts, start_hosts

PROGRAMS = Path(__file__).parent / "programs"
READY = ["sh", "-c", "echo ready; exec sleep 600"]
NOTICED = 10.0  # seconds; five are promised, and a busy machine may start late
SILENCE = 6.0  # longer than a connection without an answer lasts

pytestmark = needs_agent


def end(process: subprocess.Popen[str]) -> None:
    """End the program of a run, as with Ctrl-C."""
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT


def agents(hosts: SshHosts, name: str) -> list[int]:
    """Return the processes of the runtime at a host."""
    return [pid for pid, command in hosts.lan.processes(name).items() if "dragon node --join" in command]


def test_the_loss_of_a_disconnected_host_is_reported_and_its_agent_ends(site: Site, ssh_hosts: SshHosts) -> None:
    process = ssh_hosts.start(site, *READY)
    assert hear(site, process) == ["ready"]
    assert agents(ssh_hosts, "node3")
    with ssh_hosts.lan.cut("node3"):
        assert hear_error(site, process, "node 2 (node3) is lost") < NOTICED
        await_that(lambda: not agents(ssh_hosts, "node3"), "the end of the agent that was cut off")
    end(process)


def test_the_run_ends_after_the_loss_of_the_host_of_the_head_process(site: Site, ssh_hosts: SshHosts) -> None:
    process = ssh_hosts.start(site, *READY)
    assert hear(site, process) == ["ready"]
    with ssh_hosts.lan.cut("node1"):
        assert hear_error(site, process, "the run ends: the head process was there") < NOTICED
        process.communicate(timeout=60)
        assert process.returncode == 1
        await_that(lambda: not agents(ssh_hosts, "node1"), "the end of the agent that was cut off")


def test_a_resilient_program_is_restarted_after_the_loss_of_its_host(site: Site, ssh_hosts: SshHosts) -> None:
    command = ["sh", "-c", "echo $(hostname) $DRAGON_RESILIENT_RESTART; exec sleep 600"]
    process = ssh_hosts.start(site, "--resilient", *command)
    assert hear(site, process) == ["node1"]
    with ssh_hosts.lan.cut("node1"):
        assert hear(site, process) == ["node2 1"]
        end(process)
        await_that(lambda: not agents(ssh_hosts, "node1"), "the end of the agent that was cut off")


def test_a_wait_for_a_process_of_a_lost_host_ends_with_an_error(site: Site, ssh_hosts: SshHosts) -> None:
    process = ssh_hosts.start(site, PROGRAMS / "stay.py")
    assert sorted(hear(site, process, 3)) == ["here: node1", "here: node2", "here: node3"]
    with ssh_hosts.lan.cut("node3"):
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "node 2 (node3) is lost" in err
        assert "DragonUserCodeError" in err
        await_that(lambda: not agents(ssh_hosts, "node3"), "the end of the agent that was cut off")


def test_the_loss_of_a_host_without_power_is_reported(site: Site, tmp_path: Path) -> None:
    with start_hosts(tmp_path) as hosts:
        process = hosts.start(site, *READY)
        assert hear(site, process) == ["ready"]
        hosts.lan.switch_off("node2")
        assert hear_error(site, process, "node 1 (node2) is lost") < NOTICED
        end(process)


def test_a_stopped_agent_is_not_reported_as_lost(site: Site, ssh_hosts: SshHosts) -> None:
    process = ssh_hosts.start(site, PROGRAMS / "stay.py")
    assert sorted(hear(site, process, 3)) == ["here: node1", "here: node2", "here: node3"]
    for pid in agents(ssh_hosts, "node2"):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(SILENCE)
    for pid in agents(ssh_hosts, "node2"):
        os.kill(pid, signal.SIGCONT)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert not re.search(r"is (gone|lost)", err)


def test_a_host_with_a_saturated_link_is_not_reported_as_lost(site: Site, ssh_hosts: SshHosts) -> None:
    # Two of the six processes are there, and send 6 MiB: for longer than a silence may last.
    with ssh_hosts.lan.shaped("node3", "8mbit"):
        process = ssh_hosts.start(site, PROGRAMS / "everywhere.py")
        assert process.communicate(timeout=100) == ("ok\n", "")


def test_a_host_with_a_high_latency_can_be_used(site: Site, ssh_hosts: SshHosts) -> None:
    with ssh_hosts.lan.delayed("node3", 0.05):
        process = ssh_hosts.start(site, PROGRAMS / "hello.py")
        assert process.communicate(timeout=100) == ("head node1\nnodes node1 node2 node3\n", "")


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("deaf", "Connection refused"),
        ("absent", "No route to host"),
        ("host.invalid", "Could not resolve hostname host.invalid"),
    ],
)
def test_the_error_for_an_unreachable_host_has_the_message_of_ssh(
    site: Site, ssh_hosts: SshHosts, host: str, told: str
) -> None:
    done = site.run(*ssh_hosts.dragon("--hostlist", f"node1,{host}", "true"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"dragon: ssh to {host} ended with code 255:\nssh: ")
    assert told in done.stderr


def test_the_error_for_a_disconnected_host_names_it(site: Site, ssh_hosts: SshHosts) -> None:
    with ssh_hosts.lan.cut("node2"):
        done = site.run(*ssh_hosts.dragon("--hostlist", "node1,node2", "--join-timeout", "5", "true"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "node2" in done.stderr
    assert "node1" not in done.stderr
