"""A Slurm of three nodes on this machine: Debian's, with one controller and one daemon per node."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from conftest import Site
from peers import await_that, dragon, nothing_left

__all__ = ["Slurm", "running_slurm", "slurm"]

PATH = f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin"
MISSING = [name for name in ("slurmctld", "slurmd", "salloc", "munged") if shutil.which(name, path=PATH) is None]
NODES = ("n1", "n2", "n3")

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
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
KillWait=5
GresTypes=gpu
NodeName=n[1-3] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={cpus} Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES State=UP
"""
# Slurm counts device files, and does not check what they are.
DEVICES = """\
Name=gpu File=/dev/null
Name=gpu File=/dev/zero
"""


class Slurm:
    """A Slurm cluster. `environment` has the variables that its commands need."""

    nodes = NODES

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.environment = {"PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")}

    def start(self, site: Site, *words: str | Path) -> subprocess.Popen[str]:
        return site.start("salloc", "--quiet", "-N3", *dragon(*words), env=self.environment)

    def leftovers(self) -> list[str]:
        return [f"job {line}" for line in self.tell("squeue", "-h").splitlines()]

    def tell(self, *command: str) -> str:
        """Return what a Slurm command prints."""
        environment = {**os.environ, **self.environment}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout

    def script(self, site: Site, *words: str | Path) -> Path:
        """Write a job script that runs `dragon` with these arguments."""
        return site.write(f"#!/bin/sh\nexec {shlex.join(dragon(*words))}\n", "job.sh")

    def submit(self, site: Site, *words: str | Path) -> tuple[str, str]:
        """Run `dragon` with these arguments in `sbatch`; return the job's final state and its output."""
        script = self.script(site, *words)
        done = site.run("sbatch", "--parsable", "-N3", "--output=job.out", script, env=self.environment)
        job = done.stdout.strip()
        await_that(lambda: not self.leftovers(), f"the end of job {job}", timeout=60)
        told = dict(word.split("=", 1) for word in self.tell("scontrol", "show", "job", job).split() if "=" in word)
        return f"{told['JobState']} {told['ExitCode']}", (site.folder / "job.out").read_text()

    def idle_nodes(self) -> tuple[str, ...]:
        return tuple(sorted(self.tell("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split()))

    def serve(self, daemons: ExitStack) -> None:
        """Start the cluster's daemons, which end with the stack, and at the latest with this process."""
        folder, first = self._folder, free_ports(4)
        text = CONFIGURATION.format(
            host=socket.gethostname(), folder=folder, port=first, first=first + 1, last=first + 3, cpus=os.cpu_count()
        )
        (folder / "slurm.conf").write_text(text)
        (folder / "gres.conf").write_text(DEVICES)
        key, door = folder / "munge.key", folder / "munge.sock"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(1024))
        files = [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
        self._daemon(daemons, "munged", "-F", "--force", f"--key-file={key}", f"--socket={door}", *files)
        await_that(door.exists, "munged")
        self._daemon(daemons, "slurmctld", "-D", "-i")
        for name in NODES:
            self._daemon(daemons, "slurmd", "-D", "-N", name)
        await_that(lambda: self.idle_nodes() == NODES, f"all nodes idle; see {folder}", timeout=60)

    def _daemon(self, daemons: ExitStack, *command: str) -> None:
        with (self._folder / f"{command[0]}.output").open("a") as output:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig=TERM", *command],
                env={**os.environ, **self.environment},
                stdout=output,
                stderr=output,
            )
        daemons.callback(end, process)


def end(daemon: subprocess.Popen[bytes]) -> None:
    """Terminate a daemon, and check that it ends."""
    daemon.terminate()
    daemon.wait(timeout=30)


def free_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    for first in range(21000, 30000, count):
        try:
            with ExitStack() as taken:
                for port in range(first, first + count):
                    taken.enter_context(socket.create_server(("", port)))
        except OSError:
            continue
        return first
    raise RuntimeError("no free ports")


@pytest.fixture(scope="session")
def running_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """Start a cluster of three nodes for the session."""
    if MISSING:
        pytest.skip(f"not installed: {', '.join(MISSING)} (packages slurm-wlm, munge)")
    if os.getuid() != 0:
        pytest.skip("slurmd starts its steps as root only")
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    with ExitStack() as daemons:
        cluster.serve(daemons)
        yield cluster


@pytest.fixture
def slurm(running_slurm: Slurm) -> Iterator[Slurm]:
    """Provide the cluster to a test, without jobs."""
    try:
        with nothing_left(running_slurm):
            yield running_slurm
    finally:
        running_slurm.tell("scancel", "--me")  # left by a test that failed
