"""`torchloader simulate`: compares policies by discrete-event simulation, without running jobs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from dragon.commands import Parser, at_least, checked, worded
from torchloader.allocation.catalogue import maximizes, policies, policy
from torchloader.cli.main import MOST, positive
from torchloader.inputs.job import InputError
from torchloader.inputs.workload import read
from torchloader.scheduling.application import Mode, Node
from torchloader.scheduling.orders import Tiresias, order, orders
from torchloader.scheduling.scheduler import Scheduler
from torchloader.service.settings import LOG
from torchloader.simulation.result import Result
from torchloader.simulation.simulator import compare, simulate, table
from torchloader.simulation.workload import Job, jobs_of_log, jobs_of_workload, mistaken, nodes_for, synthetic

DEFAULT = ("proportional", "even", "waa-fill", "gpu-proportional")
"""The policies that are compared if none is given."""

Workload = tuple[list[Job], dict[str, Node]]
"""Jobs, and the nodes that they run on."""

_EPILOG = """\
examples:
  torchloader simulate                                  ten synthetic workloads of 100 jobs on 4 nodes
  torchloader simulate --policy jct --policy even --jobs 40 --seeds 3
  torchloader simulate jobs.csv                         a workload that you would give to `torchloader run`
  torchloader simulate results/events.jsonl --nodes 2   a live run again, with what was measured in it
  torchloader simulate --policy jct --order arrival --order tiresias --start 30
                                                        with and without jobs that preempt others, which costs 30 s
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

A synthetic workload has jobs of ten networks, which need from 1 to 21 workers per device, on 1, 2 or 4 devices; they
arrive at random times. Further policies and orders are entry points of the groups torchloader.policies and
torchloader.orders; benchmarks/papers has those of published schedulers, with public traces and the papers' workloads.
"""


_not_negative = checked(float, lambda number: 0 <= number <= MOST, f"a number from 0 to {MOST:.0f}")
_rising = checked(
    lambda text: tuple(map(float, text.split(","))),
    lambda found: all(low < high <= MOST for low, high in zip((0.0, *found), found, strict=False)),
    "numbers above 0 that rise, such as 3600,36000",
)


def parser() -> argparse.ArgumentParser:
    result = Parser(
        prog="torchloader simulate",
        description="Compare policies on a workload without running it.",
        epilog=_EPILOG,
        allow_abbrev=False,
    )
    add, some, defaults = result.add_argument, at_least(1), Tiresias()
    add("workload", nargs="?", metavar="WORKLOAD", help="a workload file, or the event log of a live run")
    several = f"may be given several times (default {', '.join(DEFAULT)}); there are {', '.join(policies())}"
    add("--policy", action="append", choices=sorted(policies()), metavar="NAME", help=several)
    which = (
        "which jobs get GPUs first, each policy under each order: arrival (the default), tiresias (least attained "
        "service in queues), or srtf (shortest remaining time first, which uses the length of jobs)"
    )
    add("--order", action="append", choices=sorted(orders()), metavar="NAME", help=which)
    queues = "for tiresias: GPU seconds at which a job moves to the next queue (default 3600: two queues)"
    add("--queues", type=_rising, default=defaults.thresholds, metavar="S,S", help=queues)
    promote = "for tiresias: a job that waits N times as long as it ran returns to the first queue (default 8)"
    add("--promote", type=positive(), default=defaults.promote, metavar="N", help=promote)
    patience = "seconds for which a waiting job that does not fit lets others start before it (default 1800)"
    add("--patience", type=_not_negative, default=1800.0, metavar="S", help=patience)
    against = "the row that others are compared with, such as even+srtf (default: the last)"
    add("--against", metavar="ROW", help=against)
    modes = "reallocate: 1 never, 2 on arrivals, 3 also on departures"
    add("--mode", type=int, choices=[1, 2, 3], default=3, help=modes)
    add("--jobs", type=some, metavar="N", help="number of jobs (default 100)")
    load = "work that arrives per second, relative to the capacity of all devices (default 1.5)"
    add("--load", type=positive(), metavar="PART", help=load)
    error = "relative error of the scheduler's estimates of how fast jobs train and load, such as 0.1 (default 0)"
    add("--error", type=positive(10), metavar="PART", help=error)
    add("--minutes", type=positive(), default=10.0, help="median length of a synthetic job (default 10)")
    add("--seed", type=int, default=0, help="the seed of the first workload (default 0)")
    add("--seeds", type=some, default=10, metavar="N", help="number of workloads (default 10)")
    named = "for a workload file as many as it names"
    add("--nodes", type=some, metavar="N", help=f"nodes of the cluster (default 4; {named})")
    add("--cores", type=some, default=24, metavar="N", help="cores of each node for loading (default 24)")
    add("--gpus", type=some, metavar="N", help=f"GPUs of each node (default 4; {named})")
    stop = "seconds for which waa-fill and waa-trim stop a job (default 20)"
    add("--stop", type=_not_negative, default=20.0, metavar="S", help=stop)
    start = "seconds that the start of a job takes (default 0)"
    add("--start", type=_not_negative, default=0.0, metavar="S", help=start)
    learn = "seconds that a job trains before the scheduler knows how fast it trains and loads (default 0)"
    add("--learn", type=_not_negative, default=0.0, metavar="S", help=learn)
    elastic = "let waa-fill and waa-trim change workers without stopping jobs, as all others do"
    add("--elastic", action="store_true", help=elastic)
    anywhere = (
        "proportional, total, busy, max-min and jct may use workers on any node, as with "
        "ElasticDataLoader(workers_on=…); `torchloader run` keeps them on the nodes of the job's devices"
    )
    add("--anywhere", action="store_true", help=anywhere)
    out = "write every job, all workers over time, and the event logs there"
    add("--out", type=Path, metavar="DIR", help=out)
    add("--json", action="store_true", help="print the table as JSON")
    return result


def workloads(arguments: argparse.Namespace) -> list[Workload]:
    """Return the jobs of every seed, and the nodes for them. A given workload does not depend on the seed."""
    if arguments.workload:
        jobs = _given(arguments.workload)[: arguments.jobs]
        nodes = nodes_for(jobs, arguments.nodes or 1, arguments.cores, arguments.gpus or 1)
        gpus = max(len(node.devices) for node in nodes.values())
        for option, wanted, named in (("nodes", arguments.nodes, len(nodes)), ("gpus", arguments.gpus, gpus)):
            if wanted and wanted < named:
                raise ValueError(f"--{option} {wanted}: the jobs of {arguments.workload} name {named}")
        return [(jobs, nodes)]
    gpus, count = arguments.gpus or 4, arguments.nodes or 4
    nodes = {f"node{at}": Node(arguments.cores, tuple(range(gpus))) for at in range(count)}
    load, jobs_each = arguments.load or 1.5, arguments.jobs or 100
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    return [(synthetic(jobs_each, seed, count * gpus, load, arguments.minutes, gpus), nodes) for seed in seeds]


def _given(path: str) -> list[Job]:
    if path.endswith((".jsonl", ".log")):
        return jobs_of_log(path)
    if (Path(path) / LOG).exists():
        raise ValueError(f"{path} is the folder of a run; to simulate its log: {Path(path) / LOG}")
    workload = read(path)
    for mistake in workload.errors:
        print(f"torchloader simulate: {mistake.message}", file=sys.stderr)
    if not workload.jobs:
        raise ValueError(f"{path} has no job that can be simulated")
    return jobs_of_workload(workload.jobs)


def schedulers(arguments: argparse.Namespace) -> list[Scheduler]:
    made = []
    for ranks in dict.fromkeys(arguments.order or ["arrival"]):
        turn = Tiresias(arguments.queues, arguments.promote) if ranks == "tiresias" else order(ranks)
        for name in dict.fromkeys(arguments.policy or DEFAULT):
            published, chosen = name.startswith("waa-") and not arguments.elastic, policy(name)
            cost, anywhere = arguments.stop if published else 0.0, arguments.anywhere and maximizes(chosen)
            more = {"weigh": not published, "patience": arguments.patience, "anywhere": anywhere}
            made.append(Scheduler(chosen, Mode(arguments.mode), turn, cost, **more))
    return made


def many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def main(words: Sequence[str]) -> int:
    """Run the command. Returns the exit code, 2 if nothing could be simulated."""
    return compared(parser(), words, workloads, schedulers)


def compared(
    options: argparse.ArgumentParser,
    words: Sequence[str],
    workloads: Callable[[argparse.Namespace], list[Workload]],
    schedulers: Callable[[argparse.Namespace], list[Scheduler]],
    simulate: Callable[..., Result] = simulate,
) -> int:
    """Parse a command line, simulate every scheduler on every workload, and print the table. Returns the exit code."""
    arguments = options.parse_args(list(words))
    try:
        wanted = schedulers(arguments)
        names = [each.name for each in wanted]
        against = arguments.against or names[-1]
        if against not in names:
            options.error(f"--against {against}: it is not among the policies that are simulated: {', '.join(names)}")
        simulated = workloads(arguments)
        if arguments.error:
            simulated = [
                (mistaken(jobs, arguments.error, arguments.seed + place), nodes)
                for place, (jobs, nodes) in enumerate(simulated)
            ]
        results = _simulated(simulate, simulated, wanted, arguments)
        rows = compare(results, names.index(against), _devices(simulated[0]))
        for own in results if arguments.out else ():
            for place, result in enumerate(own):
                result.write(arguments.out / result.policy / (f"seed{arguments.seed + place}" if len(own) > 1 else ""))
    except (InputError, ModuleNotFoundError, ValueError, OSError) as error:
        print(f"{options.prog}: {worded(error)}", file=sys.stderr)
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
    simulate: Callable[..., Result],
    workloads: list[Workload],
    schedulers: list[Scheduler],
    arguments: argparse.Namespace,
) -> list[list[Result]]:
    total, before = sum(len(jobs) for jobs, _ in workloads) * len(schedulers), 0
    shown = sys.stderr.isatty()

    def show(ended: int) -> None:
        if shown:
            done = f"{100 * (before + ended) // total:3} % {scheduler.name}"
            print(f"\r{done}\033[K", end="", file=sys.stderr, flush=True)

    results: list[list[Result]] = []
    for scheduler in schedulers:
        results.append([])
        for jobs, nodes in workloads:
            # The actual cost of a change of workers is the one that the scheduler assumes.
            made = simulate(
                jobs, nodes, scheduler, stop=scheduler.cost, start=arguments.start, learn=arguments.learn, progress=show
            )
            results[-1].append(made)
            before += len(jobs)
    if shown:
        print("\r\033[K", end="", file=sys.stderr, flush=True)
    return results


def _counted(workloads: list[Workload]) -> str:
    jobs, nodes = workloads[0]
    devices = _devices(workloads[0])
    cores = sum(node.cores for node in nodes.values())
    where = f"{many(devices, 'device')} and {many(cores, 'core')} of {many(len(nodes), 'node')}"
    return f"{many(len(workloads), 'workload')} of {many(len(jobs), 'job')} on {where}"


def _devices(workload: Workload) -> int:
    return sum(len(node.devices) for node in workload[1].values())
