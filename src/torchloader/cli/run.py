"""`torchloader run`: runs a workload on the nodes of a run."""

from __future__ import annotations

import argparse
import fcntl
import importlib.util
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from dragon.cli.main import main as dragon
from dragon.commands import Parser, at_least
from dragon.files import write_bytes
from torchloader.allocation.catalogue import policies
from torchloader.cli.main import failed, positive
from torchloader.inputs.job import InputError, Job
from torchloader.inputs.workload import read, read_hosts
from torchloader.prediction.curve import Curve
from torchloader.prediction.prior import Prior
from torchloader.scheduling.log import EventLog
from torchloader.scheduling.orders import orders
from torchloader.service.settings import JOBS, LOG, PRELOAD, Settings

_EPILOG = """\
examples:
  torchloader run jobs.csv                       on the nodes of this allocation (Slurm, PBS, ...), or on this machine
  torchloader run jobs.csv --device cpu --rehearse --cores 12 --iterations 20
                                                 try a workload for a GPU cluster on this machine first
  torchloader run jobs.toml --policy even --mode 1
  torchloader run jobs.csv --anywhere            nodes with idle cores, or without GPUs, load for jobs on others
  torchloader run jobs.csv --folder results      with the folder of an earlier run: continue that run
  torchloader run jobs.csv -- --image-size 64    pass the options after -- to the training program

While it runs, from another terminal: torchloader status --watch, pause, resume, cancel, resize, submit.
Afterwards: torchloader report FOLDER.
"""


def parser() -> argparse.ArgumentParser:
    result = Parser(
        prog="torchloader run",
        description="Run the jobs of a workload file, and move loading workers to those that wait for data.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    add, some = result.add_argument, at_least(1)
    add("workload", metavar="WORKLOAD", help="a workload's CSV, or jobs in TOML or YAML")
    add("--only", action="append", metavar="NAME", help="run only this job; may be given several times")
    add("--cluster", metavar="XML", help="a cluster configuration; all its elements are optional")
    add("--policy", default="proportional", choices=sorted(policies()), help="how workers are allocated to jobs")
    which = (
        "which jobs get GPUs first: in the order of arrival and to their end (default), or preempting others: "
        "tiresias (least attained service in queues), srtf (shortest remaining time first), or one of a package"
    )
    add("--order", default="arrival", choices=sorted(orders()), help=which)
    modes = "reallocate workers: 1 never, 2 when jobs arrive, 3 when they arrive, leave or change (default)"
    add("--mode", type=int, default=3, choices=[1, 2, 3], help=modes)
    add("--device", default="cuda", choices=["cuda", "cpu"], help="what to train on (default cuda)")
    add("--rehearse", action="store_true", help="simulate the nodes that the workload requests")
    add("--nodes", type=some, metavar="N", help="take N nodes of the allocation, or rehearse on N")
    add("--cores", type=some, default=0, metavar="N", help="cores of each node for loading workers")
    anywhere = "loading workers may run on nodes without the job's GPUs, where the data must have the same path"
    add("--anywhere", action="store_true", help=anywhere)
    add("--iterations", type=some, default=0, metavar="N", help="at most N iterations of each job")
    add("--prior", metavar="FILE", help="a prior of `torchloader fit`: the initial estimates for networks")
    add("--folder", metavar="DIR", help="for the event log and the report (default torchloader-TIME)")
    retries = "restarts of a job after it was killed (default 3)"
    add("--retries", type=at_least(0), default=3, metavar="N", help=retries)
    silence = "end a job that reports nothing for S seconds (default 300)"
    add("--silence", type=positive(), default=300.0, metavar="S", help=silence)
    add("--hold", action="store_true", help="continue after the last job, for `torchloader submit`")
    machine = "options of the `dragon` command, as one argument"
    add("--machine", type=_words, default="", metavar="OPTIONS", help=machine)
    return result


def main(words: Sequence[str]) -> int:
    at = words.index("--") if "--" in words else len(words)
    mine, options = words[:at], tuple(words[at + 1 :])
    arguments = parser().parse_args(mine)
    try:
        workload = read(arguments.workload)
        hosts = read_hosts(arguments.cluster) if arguments.cluster else []
    except (InputError, OSError) as error:
        return failed(error, 2)
    jobs = [job for job in workload.jobs if arguments.only is None or job.name in arguments.only]
    for mistake in workload.errors:
        print(f"torchloader: {mistake.message}", file=sys.stderr)
    named = {job.name for job in workload.jobs}
    if missing := sorted(set(arguments.only or ()) - named):
        others = ", ".join(job.name for job in workload.jobs) or "none that can be run"
        return failed(f"{arguments.workload} has no job {', '.join(missing)}; there are: {others}", 2)
    if not jobs and not arguments.hold:
        return failed(f"{arguments.workload} has no job that can be run", 2)
    if arguments.device == "cpu" and arguments.rehearse and not arguments.cores:
        print(
            f"torchloader: each rehearsed node has the {os.cpu_count()} cores of this machine for loading; "
            "--cores N claims more",
            file=sys.stderr,
        )
    if any(job.arch for job in jobs) and importlib.util.find_spec("torch") is None:
        return failed("the jobs train networks of PyTorch: pip install 'dragon-runtime[torch]'", 2)
    folder = Path(arguments.folder or time.strftime("torchloader-%Y%m%d-%H%M%S")).absolute()
    with ExitStack() as held:
        try:
            held.enter_context(_alone_in(folder))
            _prepare(folder, jobs, arguments, options)
        except (OSError, ValueError) as error:
            return failed(error, 2)
        if any(job.arch for job in jobs):
            os.environ[PRELOAD] = "1"
        print(f"the event log and the measurements are in {folder}", flush=True)
        code = dragon([*_machine(arguments, jobs, hosts), "-m", "torchloader.service.begin", str(folder)])
    if code - 128 in set(signal.Signals):
        there = [] if arguments.folder else ["--folder", str(folder)]
        again = shlex.join(["torchloader", "run", *mine, *there, *(["--", *options] if options else [])])
        print(f"torchloader: ended by {signal.Signals(code - 128).name}; to continue: {again}", file=sys.stderr)
    return max(code, 1 if workload.errors else 0)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Lock the folder for this run for the time of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / JOBS).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, "another run has this folder; give each its own", str(folder)) from None
        yield


def _prepare(folder: Path, jobs: Sequence[Job], arguments: argparse.Namespace, options: tuple[str, ...]) -> None:
    if (folder / LOG).exists():
        # Reports a damaged log once, before any process starts, and fails if another run has the log open.
        EventLog(folder / LOG).close()
    try:
        began = Settings.load(folder).began
    except FileNotFoundError:
        began = time.time()
    given = {name: getattr(arguments, name) for name in Settings.__struct_fields__ if hasattr(arguments, name)}
    settings = Settings(**{**given, "folder": str(folder), "began": began, "options": options})
    settings = replace(settings, guesses=_guesses(jobs, arguments.prior, settings.image_size))
    settings.save()
    write_bytes(folder / JOBS, msgspec.json.format(msgspec.json.encode(jobs)))


def _guesses(jobs: Sequence[Job], prior: str | None, image_size: int) -> dict[str, Curve]:
    if prior is None:
        return {}
    known = Prior.load(prior)
    if not any(job.arch for job in jobs):
        print(f"torchloader: {prior} is not used, as none of the jobs names a network (arch)", file=sys.stderr)
        return {}
    from torchloader.training.priors import curves_for

    return curves_for(jobs, known, image_size)


def _machine(arguments: argparse.Namespace, jobs: Sequence[Job], hosts: Sequence[str]) -> list[str]:
    """Return the options of the `dragon` command. Hosts of a cluster file are used only without an allocation."""
    options = list(arguments.machine)
    nodes = arguments.nodes
    allocated = any(name in os.environ for name in ("SLURM_JOB_ID", "PBS_NODEFILE"))
    if hosts and not allocated and not arguments.rehearse and "--hostlist" not in options:
        options += ["--hostlist", ",".join(hosts)]
    if arguments.rehearse:
        nodes = nodes or max([1, *(len(job.devices.by_node) for job in jobs)])
        if arguments.cores:
            options += ["--cpus", str(arguments.cores)]
    return [*options, *(["--nodes", str(nodes)] if nodes and (nodes > 1 or not arguments.rehearse) else [])]


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"cannot be split into words as a shell does it: {error}") from None
