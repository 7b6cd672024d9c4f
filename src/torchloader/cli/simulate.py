"""`torchloader simulate`: compares policies by discrete-event simulation, without running jobs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from dragon.commands import Parser, worded
from torchloader.allocation.catalogue import POLICIES
from torchloader.cli.numbers import at_least, counts, mix, not_negative, positive, rising
from torchloader.cli.simulated import DEFAULT, Workload, contradiction, many, schedulers, workloads
from torchloader.inputs.mistakes import InputError
from torchloader.scheduling.orders import ORDERS, Tiresias
from torchloader.scheduling.scheduler import Scheduler
from torchloader.scheduling.sizes import SIZES
from torchloader.simulation.comparison import compare, table
from torchloader.simulation.result import Result
from torchloader.simulation.simulator import simulate
from torchloader.simulation.traces import FORMATS
from torchloader.simulation.workload import mistaken

__all__ = ["main", "parser"]

_EPILOG = """\
examples:
  torchloader simulate                                  ten synthetic workloads of 100 jobs on 4 nodes
  torchloader simulate --policy jct --policy even --jobs 40 --seeds 3
  torchloader simulate jobs.csv                         a workload that you would give to `torchloader run`
  torchloader simulate results/events.jsonl --nodes 2   a live run again, with what was measured in it
  torchloader simulate --trace cluster_log.csv --format helios --jobs 500 --nodes 16 --gpus 8 --cores 64
  torchloader simulate --policy jct --order arrival --order tiresias --start 30
                                                        with and without jobs that preempt others, which costs 30 s
  torchloader simulate --mix 20,70,10 --nodes 16 --gpus 8 --jobs 1000 --seeds 3 --policy synergy --policy static
                                                        the setting of Synergy's paper
  torchloader simulate --mix gavel --kinds v100=9,p100=9,k80=9 --rate 4 --order gavel --order gavel-agnostic
                                                        the setting of Gavel's paper, on three kinds of GPUs
  torchloader simulate --trace workload-1.csv --format pollux --nodes 16 --sizes pollux --sizes fixed --start 30
                                                        the setting of Pollux's paper: numbers of GPUs change
  torchloader simulate --anywhere --cores 16            loading workers may run on nodes without the job's GPUs
  torchloader simulate --out results                    also write the results of each job, and the event logs, to files

The table shows means over the workloads with intervals of 95 %, and how much less time each policy takes than the one
that it is compared with (--against), workload by workload. A job's completion is the time from its arrival to its
end. "GPU h lost" are hours for which GPUs were held and waited for data; "unfair" is the largest finish-time fairness
of a job (above 1 it was served worse than by an equal share of the cluster). The policies that were published,
waa-fill and waa-trim, stop a job for 20 s to change its workers, as their authors' system does, and make every change;
--elastic gives them this system's loader and scheduler instead. No policy knows what will arrive.

A policy shares cores; an order (--order) decides which jobs hold GPUs. By arrival no job yields GPUs. The others pause
jobs for those that precede them, and resume them later; each start and resumption takes --start seconds.
Their rows are named POLICY+ORDER.

With --kinds, nodes have different kinds of GPUs, and a job the speed on each that is known of it: jobs of --mix gavel
and --format gavel. All GPUs of a job are of one kind. By arrival, tiresias and srtf a job gets the kind on which it is
fastest of those that are free; gavel gives the faster kinds to the jobs that gain most by them, and needs scipy for
that; gavel-agnostic gives each job equal times on all kinds.

A sizing (--sizes) decides how many GPUs a job has, in rounds of 60 s. It needs the trace's applications to be those of
Pollux: how fast they train with how many GPUs and which batch, and how much a sample of a large batch is worth, was
fitted to what Pollux's authors measured. A job ends when it has made the progress that it needs, and not after the
typical time of its class. With fixed, jobs have the GPUs and the batch of the trace, under each order. With pollux, sia
and optimus their rows are named POLICY+SIZING.

A synthetic workload has jobs of ten networks, which need from 1 to 21 workers per device, on 1, 2 or 4 devices; they
arrive at random times. With --mix a job is an image, language or speech task, has one device (--several: up to eight),
requests an equal share of the cores and takes from half an hour to a week with that. With --mix gavel it has one of
the 26 models of Gavel's evaluation and one device, and takes as long on a V100.

Of public traces (https://github.com/msr-fiddle/philly-traces, S-Lab-System-Group/HeliosData, petuum/adaptdl for pollux,
siasosp23/artifacts for sia, alibaba/clusterdata for pai, stanford-futuredata/gavel) times and devices are used; the
loading of jobs is synthetic, as traces do not contain it.
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = Parser(
        prog="torchloader simulate",
        description="Compare policies on a workload without running it.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    result.add_argument(
        "workload", nargs="?", metavar="WORKLOAD", help="a workload file, or the event log of a live run"
    )
    result.add_argument(
        "--policy",
        action="append",
        choices=sorted(POLICIES),
        metavar="NAME",
        help=f"may be given several times (default {', '.join(DEFAULT)}); there are {', '.join(POLICIES)}",
    )
    result.add_argument(
        "--order",
        action="append",
        choices=sorted(ORDERS),
        metavar="NAME",
        help="which jobs get GPUs first, each policy under each order: arrival (the default), tiresias (least "
        "attained service in queues), gavel (fair parts of the time, in rounds), gavel-agnostic (the same without "
        "regard to the speed of each kind of GPU), or srtf (shortest remaining time first, which uses the length of "
        "jobs)",
    )
    result.add_argument(
        "--queues",
        type=rising,
        default=Tiresias().thresholds,
        metavar="S,S",
        help="for tiresias: GPU seconds at which a job moves to the next queue (default 3600: two queues)",
    )
    result.add_argument(
        "--promote",
        type=positive(),
        default=Tiresias().promote,
        metavar="N",
        help="for tiresias: a job that waits N times as long as it ran returns to the first queue (default 8)",
    )
    result.add_argument(
        "--patience",
        type=not_negative,
        default=1800.0,
        metavar="S",
        help="seconds for which a waiting job that does not fit lets others start before it (default 1800)",
    )
    result.add_argument(
        "--against", metavar="ROW", help="the row that others are compared with, such as even+srtf (default: the last)"
    )
    result.add_argument(
        "--mode",
        type=int,
        choices=[1, 2, 3],
        default=3,
        help="reallocate: 1 never, 2 on arrivals, 3 also on departures",
    )
    result.add_argument(
        "--sizes",
        action="append",
        choices=["fixed", *sorted(SIZES)],
        metavar="NAME",
        help="for traces of Pollux's applications, how many GPUs a job has: pollux and sia (by goodput, with the best "
        "batch), optimus (by remaining time, which it has to know, with the trace's batch), or fixed (as in the "
        "trace); may be given several times",
    )
    result.add_argument(
        "--trace", action="append", metavar="FILE", help="jobs of a public trace; several files are several workloads"
    )
    result.add_argument("--format", choices=sorted(FORMATS), help="the format of the trace")
    result.add_argument(
        "--mix",
        type=mix,
        metavar="I,L,S",
        help="synthetic jobs as papers derive them from the Philly trace: heavy-tailed lengths, and these proportions "
        "of image, language and speech tasks, such as 20,70,10; or `gavel`, for the models of Gavel's evaluation",
    )
    result.add_argument(
        "--rate", type=positive(), metavar="N", help="for --mix: jobs that arrive per hour (default 9; 4 for gavel)"
    )
    result.add_argument("--several", action="store_true", help="for --mix: some jobs on two, four or eight GPUs")
    result.add_argument("--jobs", type=at_least(1), metavar="N", help="number of jobs (default 100, or all of a trace)")
    result.add_argument(
        "--load",
        type=positive(),
        metavar="PART",
        help="work that arrives per second, relative to the capacity of all devices (default 1.5; a trace's own)",
    )
    result.add_argument(
        "--error",
        type=positive(10),
        metavar="PART",
        help="relative error of the scheduler's estimates of how fast jobs train and load, such as 0.1 (default 0)",
    )
    result.add_argument(
        "--minutes", type=positive(), default=10.0, help="median length of a synthetic job (default 10)"
    )
    result.add_argument("--seed", type=int, default=0, help="the seed of the first workload (default 0)")
    result.add_argument("--seeds", type=at_least(1), default=10, metavar="N", help="number of workloads (default 10)")
    result.add_argument(
        "--nodes",
        type=at_least(1),
        metavar="N",
        help="nodes of the cluster (default 4; for a workload file as many as it names)",
    )
    result.add_argument(
        "--cores", type=at_least(1), default=24, metavar="N", help="cores of each node for loading (default 24)"
    )
    result.add_argument(
        "--gpus",
        type=at_least(1),
        metavar="N",
        help="GPUs of each node (default 4; for a workload file as many as it names)",
    )
    result.add_argument(
        "--kinds",
        type=counts,
        metavar="KIND=N,KIND=N",
        help="instead of --nodes: nodes with each kind of GPUs, such as v100=9,p100=9,k80=9",
    )
    result.add_argument(
        "--stop",
        type=not_negative,
        default=20.0,
        metavar="S",
        help="seconds for which waa-fill and waa-trim stop a job (default 20)",
    )
    result.add_argument(
        "--start",
        type=not_negative,
        default=0.0,
        metavar="S",
        help="seconds that the start of a job takes (default 0)",
    )
    result.add_argument(
        "--learn",
        type=not_negative,
        default=0.0,
        metavar="S",
        help="seconds that a job trains before the scheduler knows how fast it trains and loads (default 0)",
    )
    result.add_argument(
        "--elastic",
        action="store_true",
        help="let waa-fill and waa-trim change workers without stopping jobs, as all others do",
    )
    result.add_argument(
        "--anywhere",
        action="store_true",
        help="proportional, total, busy, max-min and jct may use workers on any node, as with "
        "ElasticDataLoader(workers_on=…); `torchloader run` keeps them on the nodes of the job's devices",
    )
    result.add_argument(
        "--out", type=Path, metavar="DIR", help="write every job, all workers over time, and the event logs there"
    )
    result.add_argument("--json", action="store_true", help="print the table as JSON")
    return result


def main(words: Sequence[str]) -> int:
    """Run the command. Returns the exit code, 2 if nothing could be simulated."""
    arguments = parser().parse_args(list(words))
    if wrong := contradiction(arguments):
        parser().error(wrong)
    wanted = schedulers(arguments)
    names = [each.name for each in wanted]
    against = arguments.against or names[-1]
    if against not in names:
        parser().error(f"--against {against}: it is not among the policies that are simulated: {', '.join(names)}")
    try:
        simulated = workloads(arguments)
        if arguments.kinds and not any(job.spec.speeds for jobs, _ in simulated for job in jobs):
            told = "--kinds: no job has a speed for each kind, so all kinds are equally fast"
            print(f"torchloader simulate: {told}; --mix gavel has speeds", file=sys.stderr)
        if arguments.error:
            simulated = [
                (mistaken(jobs, arguments.error, arguments.seed + place), nodes)
                for place, (jobs, nodes) in enumerate(simulated)
            ]
        results = _simulated(simulated, wanted, arguments)
        rows = compare(results, names.index(against), _devices(simulated[0]))
        if arguments.out:
            _write(arguments.out, results, arguments.seed)
    except (InputError, ModuleNotFoundError, ValueError, OSError) as error:
        print(f"torchloader simulate: {worded(error)}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
        return 0
    print(table(rows, against))
    if len(rows) > 1:
        print(f"the last three columns are against {against}; simulated, {_counted(simulated)}")
    if arguments.out:
        print(f"every job, all workers over time and the event logs are in {arguments.out}")
    return 0


def _simulated(
    workloads: list[Workload], schedulers: list[Scheduler], arguments: argparse.Namespace
) -> list[list[Result]]:
    """Return the results of each scheduler on each workload."""
    total, before = sum(len(jobs) for jobs, _ in workloads) * len(schedulers), 0
    shown = sys.stderr.isatty()

    def tell(ended: int) -> None:
        if shown:
            done = f"{100 * (before + ended) // total:3} % {scheduler.name}"
            print(f"\r{done}\033[K", end="", file=sys.stderr, flush=True)

    results: list[list[Result]] = []
    for scheduler in schedulers:
        results.append([])
        for jobs, nodes in workloads:
            # The actual cost of a change of workers is the one that the scheduler assumes.
            made = simulate(
                jobs, nodes, scheduler, stop=scheduler.cost, start=arguments.start, learn=arguments.learn, progress=tell
            )
            results[-1].append(made)
            before += len(jobs)
    if shown:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return results


def _write(folder: Path, results: list[list[Result]], first: int) -> None:
    for own in results:
        for place, result in enumerate(own):
            result.write(folder / result.policy / (f"seed{first + place}" if len(own) > 1 else ""))


def _counted(workloads: list[Workload]) -> str:
    jobs, nodes = workloads[0]
    devices = _devices(workloads[0])
    cores = sum(node.cores for node in nodes.values())
    where = f"{many(devices, 'device')} and {many(cores, 'core')} of {many(len(nodes), 'node')}"
    return f"{many(len(workloads), 'workload')} of {many(len(jobs), 'job')} on {where}"


def _devices(workload: Workload) -> int:
    return sum(len(node.devices) for node in workload[1].values())
