"""The Slurm launcher in allocations of a real Slurm: one controller and three daemons on this machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Site

OVER = Path(__file__).with_name("over.py")
PATH = f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin"
MISSING = [name for name in ("slurmctld", "slurmd", "salloc", "munged") if shutil.which(name, path=PATH) is None]

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)} (packages slurm-wlm, munge)"),
    pytest.mark.skipif(os.getuid() != 0, reason="slurmd starts its steps as root only"),
]

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.sock
SlurmUser=root
SlurmctldPort={port}
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
NodeName=n[1-3] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={cpus}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    for first in range(21000, 30000, count):
        try:
            taken = [socket.create_server(("", port)) for port in range(first, first + count)]
        except OSError:
            continue
        for one in taken:
            one.close()
        return first
    raise RuntimeError("no free ports")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A cluster of three nodes; what must be in the environment in order to use it."""
    folder = tmp_path_factory.mktemp("slurm")
    first = free_ports(4)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            host=socket.gethostname(), folder=folder, port=first, first=first + 1, last=first + 3, cpus=os.cpu_count()
        )
    )
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    files = [f"--{name}={folder}/munge.{name.partition('-')[0]}" for name in ("pid-file", "log-file", "seed-file")]
    commands = [["munged", "-F", "--force", f"--key-file={key}", f"--socket={folder}/munge.sock", *files]]
    commands += [["slurmctld", "-D", "-i"], *(["slurmd", "-D", "-N", f"n{number}"] for number in (1, 2, 3))]
    environment = {"PATH": PATH, "SLURM_CONF": str(configuration)}
    daemons = []
    try:
        for command in commands:
            with (folder / f"{command[0]}{len(daemons)}.output").open("w") as output:
                daemons.append(
                    subprocess.Popen(command, env={**os.environ, **environment}, stdout=output, stderr=output)
                )
            if command[0] == "munged":
                wait((folder / "munge.sock").exists)
        wait(lambda: idle_nodes(environment) == 3)
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(timeout=30)


def wait(condition, timeout: float = 60) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "Slurm did not come up"
        time.sleep(0.1)


def idle_nodes(environment: dict[str, str]) -> int:
    command = ["sinfo", "-h", "-N", "-t", "idle", "-o", "%N"]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    return len(done.stdout.split())


def over(*command: str, wanted: str = "{}") -> list[str]:
    return [sys.executable, "-W", "error", str(OVER), wanted, '{"join_timeout": 30}', *command]


def test_salloc_gives_all_its_nodes_in_order(site: Site, cluster: dict[str, str]) -> None:
    done = site.run("salloc", "-N3", *over("sh", "-c", "echo $INDEX: $NODES; exit 5"), env=cluster)
    assert done.stdout == "0: n1 n2 n3\ncode 5\n", done.stderr


def test_a_part_of_an_allocation(site: Site, cluster: dict[str, str]) -> None:
    done = site.run("salloc", "-N3", *over("sh", "-c", "echo $NODES", wanted='{"nodes": 2}'), env=cluster)
    assert done.stdout == "n1 n2\ncode 0\n", done.stderr


def test_sbatch(site: Site, cluster: dict[str, str]) -> None:
    script = site.folder / "job.sh"
    words = " ".join(f"'{word}'" for word in over("sh", "-c", "echo $INDEX: $NODES"))
    script.write_text(f"#!/bin/sh\n{words}\n")
    done = site.run("sbatch", "--wait", "-N2", "--output", "job.out", script, env=cluster)
    assert done.returncode == 0, done.stderr
    assert "0: n1 n2\ncode 0\n" in (site.folder / "job.out").read_text()


def test_beside_another_step_of_the_job(site: Site, cluster: dict[str, str]) -> None:
    script = site.folder / "job.sh"
    words = " ".join(f"'{word}'" for word in over("sh", "-c", "echo $NODES"))
    script.write_text(f"#!/bin/sh\nsrun --overlap sleep 60 & other=$!\n{words}\nkill $other; wait\n")
    script.chmod(0o755)
    done = site.run("salloc", "-N2", script, env=cluster)
    assert "n1 n2\ncode 0\n" in done.stdout, done.stderr


def test_an_agent_that_fails_is_told_with_what_it_wrote(site: Site, cluster: dict[str, str]) -> None:
    done = site.run("salloc", "-N2", *over("true"), env={**cluster, "STAND_IN": "/nonexistent.py"})
    assert "launch failed: srun ended with code 2" in done.stderr
    assert "can't open file" in done.stderr


def test_the_end_of_the_front_end_ends_the_step(site: Site, cluster: dict[str, str]) -> None:
    process = site.start("salloc", "-N2", *over("sh", "-c", "echo ready; exec sleep 1"), env=cluster)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for pid, command in site.processes():
        if "over.py" in command and "salloc" not in command:
            os.kill(pid, 9)
    process.communicate(timeout=60)
    wait(lambda: not site.processes())
