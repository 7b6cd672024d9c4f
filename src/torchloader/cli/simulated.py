"""What `torchloader simulate` simulates: the workloads and the schedulers that its options mean."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Mapping
from pathlib import Path

from torchloader.allocation.catalogue import policy
from torchloader.allocation.policies import Best, MaxMin
from torchloader.inputs.reading import read
from torchloader.scheduling.actions import Mode, Node
from torchloader.scheduling.orders import Tiresias, order
from torchloader.scheduling.scheduler import Scheduler
from torchloader.scheduling.sizes import SIZES, Sizing
from torchloader.service.settings import LOG
from torchloader.simulation.derived import derived
from torchloader.simulation.gavel_models import gavel_jobs
from torchloader.simulation.given import jobs_of_log, jobs_of_workload, nodes_for
from torchloader.simulation.job import Job
from torchloader.simulation.traces import read_trace, stretched
from torchloader.simulation.workload import synthetic

__all__ = ["DEFAULT", "Workload", "contradiction", "many", "schedulers", "workloads"]

DEFAULT = ("proportional", "even", "waa-fill", "gpu-proportional")
"""The policies that are compared if none is given."""


def contradiction(arguments: argparse.Namespace) -> str:
    """Return which options cannot be given together, if such are; else an empty string."""
    trace, mixed = arguments.trace, arguments.mix
    wrong = {
        "--rate and --several need --mix": (arguments.rate or arguments.several) and not mixed,
        "--several: the jobs of --mix gavel have one GPU each": mixed == "gavel" and arguments.several,
        "--kinds gives the nodes: give neither --nodes nor a workload file": (
            arguments.kinds and (arguments.nodes or arguments.workload)
        ),
        "--mix generates jobs: give neither a workload nor a trace, and --rate instead of --load": (
            mixed and (trace or arguments.workload or arguments.load)
        ),
        "--sizes needs jobs of known goodput: --trace FILE --format pollux": (
            arguments.sizes and not (trace and arguments.format in ("pollux", "sia"))
        ),
        "a trace is given by --trace FILE and --format together, and without a workload file": (
            bool(trace) != bool(arguments.format) or (trace and arguments.workload)
        ),
    }
    return next((told for told, applies in wrong.items() if applies), "")


Workload = tuple[list[Job], dict[str, Node]]
"""Jobs, and the nodes that they run on."""


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
    gpus = arguments.gpus or 4
    kinds = _spread(arguments.kinds) if arguments.kinds else [""] * (arguments.nodes or 4)
    nodes = {f"node{at}": Node(arguments.cores, tuple(range(gpus)), kind=kind) for at, kind in enumerate(kinds)}
    count = len(nodes)
    seeds = range(arguments.seed, arguments.seed + arguments.seeds)
    if arguments.mix == "gavel":
        jobs_each, rate = arguments.jobs or 100, arguments.rate or 4.0
        return [(gavel_jobs(jobs_each, seed, rate, arguments.cores / gpus), nodes) for seed in seeds]
    if arguments.mix:
        rate, share = arguments.rate or 9.0, arguments.cores / gpus
        jobs_each, largest = arguments.jobs or 100, count * gpus if arguments.several else 1
        return [(derived(jobs_each, seed, arguments.mix, rate, share, largest), nodes) for seed in seeds]
    if not arguments.trace:
        load, jobs_each = arguments.load or 1.5, arguments.jobs or 100
        return [(synthetic(jobs_each, seed, count * gpus, load, arguments.minutes, gpus), nodes) for seed in seeds]
    found = []
    for file, seed in itertools.product(arguments.trace, seeds):
        jobs = read_trace(file, arguments.format, seed, arguments.jobs, profiles=bool(arguments.sizes))
        fitting = [job for job in jobs if job.spec.size <= count * gpus]
        if len(fitting) < len(jobs) and seed == arguments.seed:
            left = many(len(jobs) - len(fitting), "job")
            print(f"torchloader simulate: left out, as the cluster has {count * gpus} devices: {left}", file=sys.stderr)
        if not fitting:
            raise ValueError(f"{file}: there is no job that ran on 1 to {count * gpus} devices")
        found.append((stretched(fitting, count * gpus, arguments.load) if arguments.load else fitting, nodes))
    return found


def _spread(kinds: Mapping[str, int]) -> list[str]:
    """Return the kind of each node. They alternate, so that who takes the first nodes gets a mixture."""
    order = sorted((place / number, kind) for kind, number in kinds.items() for place in range(number))
    return [kind for _, kind in order]


def _given(path: str) -> list[Job]:
    if path.endswith((".jsonl", ".log")):
        return jobs_of_log(path)
    if (Path(path) / LOG).exists():
        raise ValueError(f"{path} is the folder of a run; to simulate its log: {Path(path) / LOG}")
    workload = read(path)
    for mistake in workload.errors:
        print(f"torchloader simulate: {mistake.told}", file=sys.stderr)
    if not workload.jobs:
        raise ValueError(f"{path} has no job that can be simulated")
    return jobs_of_workload(workload.jobs)


def schedulers(arguments: argparse.Namespace) -> list[Scheduler]:
    """Return one scheduler for each policy under each order, and with each sizing, which replaces the order."""
    made = []
    chosen = dict.fromkeys(arguments.sizes or ["fixed"])
    ways: list[tuple[str, Sizing | None]]
    ways = [(ranks, None) for ranks in dict.fromkeys(arguments.order or ["arrival"]) if "fixed" in chosen]
    ways += [("arrival", SIZES[name](arguments.start)) for name in chosen if name != "fixed"]
    for ranks, sizes in ways:
        turn = Tiresias(arguments.queues, arguments.promote) if ranks == "tiresias" else order(ranks)
        for name in dict.fromkeys(arguments.policy or DEFAULT):
            published = name.startswith("waa-") and not arguments.elastic
            cost = arguments.stop if published else 0.0
            anywhere = arguments.anywhere and isinstance(policy(name), Best | MaxMin)
            made.append(
                Scheduler(
                    policy(name),
                    Mode(arguments.mode),
                    turn,
                    cost,
                    weigh=not published,
                    patience=arguments.patience,
                    anywhere=anywhere,
                    sizes=sizes,
                )
            )
    return made


def many(count: int, what: str) -> str:
    """Return words for a number of things."""
    return f"{count} {what}{'' if count == 1 else 's'}"
