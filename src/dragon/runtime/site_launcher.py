"""The commands with which a site starts the ranks of its own MPI library: Slurm's srun, and the mpiexec of PALS."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from dragon.infrastructure.errors import NotSupportedError

# Variables of the allocation, or of the current step, that srun would apply to the step that it starts.
OF_ANOTHER_STEP = (
    "SLURM_CPUS_PER_GPU",
    "SLURM_CPUS_PER_TASK",
    "SRUN_CPUS_PER_TASK",
    "SLURM_DISTRIBUTION",
    "SLURM_GPUS",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPU_BIND",
    "SLURM_NTASKS_PER_CORE",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_NTASKS_PER_SOCKET",
    "SLURM_TRES_PER_TASK",
)


def has_pals() -> bool:
    """Return whether the `mpiexec` in PATH is that of PALS."""
    found = shutil.which("mpiexec")
    return found is not None and "pals" in os.path.realpath(found).split(os.sep)


def find_launcher(what: str) -> str:
    """Return the command that starts ranks in the allocation of this process."""
    srun = shutil.which("srun") or ""
    mpiexec = (shutil.which("mpiexec") or "") if has_pals() else ""
    if srun and "SLURM_JOB_ID" in os.environ:
        return srun
    if mpiexec and "PBS_NODEFILE" in os.environ:
        return mpiexec
    which = srun or mpiexec
    why = (
        f"{which} starts nothing outside of an allocation (salloc, sbatch, qsub)"
        if which
        else "there is none on this machine (srun, mpiexec)"
    )
    raise NotSupportedError(f"{what or 'the job'} is started by the launcher of its site only: {why}")


def launch_command(launcher: str, hosts: Sequence[str], host_file: Path, task: Sequence[str]) -> list[str]:
    """Return the command that starts a task on each of these hosts, so that task i is on host i."""
    if os.path.basename(launcher) == "mpiexec":
        return _mpiexec(launcher, _in_node_file(hosts), task)
    names = [_in_slurm(host) for host in hosts]
    host_file.write_text("".join(f"{name}\n" for name in names))
    return [
        launcher,
        f"--nodes={len(set(names))}",
        f"--ntasks={len(names)}",
        "--distribution=arbitrary",  # in the order of SLURM_HOSTFILE
        "--overlap",  # beside the step of the agents
        "--overcommit",  # policies decide how many ranks a node has
        "--cpu-bind=none",
        "--export=ALL",
        "--input=none",
        "--kill-on-bad-exit=0",  # the other ranks get a moment to end by themselves
        "--unbuffered",
        *task,
    ]


def launch_environment(launcher: str, host_file: Path) -> dict[str, str]:
    """Return the environment for that command."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_ANOTHER_STEP}
    if os.path.basename(launcher) != "mpiexec":
        environment["SLURM_HOSTFILE"] = str(host_file)
    return environment


def _mpiexec(launcher: str, hosts: Sequence[str], task: Sequence[str]) -> list[str]:
    runs = [(host, sum(1 for _ in run)) for host, run in itertools.groupby(hosts)]
    counts = {count for _, count in runs}
    if len(counts) == 1 and len({host for host, _ in runs}) == len(runs):
        parts = [(len(hosts), counts.pop(), ",".join(host for host, _ in runs))]
    else:
        parts = [(count, count, host) for host, count in runs]
    command = [launcher]
    for number, (total, on_each, names) in enumerate(parts):
        place = ["--np", str(total), "--ppn", str(on_each), "--hosts", names, "--cpu-bind", "none"]
        command += [*([":"] if number else []), *place, *task]
    return command


def _in_slurm(host: str) -> str:
    """Return Slurm's name of a host, which in a run of one node may differ from the machine's."""
    return os.environ.get("SLURMD_NODENAME", host) if host == socket.gethostname() else host


def _in_node_file(hosts: Sequence[str]) -> list[str]:
    """Return PBS's names of hosts, which may be longer or shorter than their own. Raises OSError."""
    listed = Path(os.environ["PBS_NODEFILE"]).read_text().split()
    known = {name.partition(".")[0]: name for name in listed}
    return [known.get(host.partition(".")[0], host) for host in hosts]
