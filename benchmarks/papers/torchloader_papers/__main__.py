"""`torchloader-papers`: what `torchloader simulate` does, with public traces, the papers' workloads, several kinds of
GPUs, and numbers of GPUs that change."""

from __future__ import annotations

import argparse
import itertools
import sys
from argparse import ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from unittest import mock

from torchloader.allocation import catalogue
from torchloader.cli import simulate
from torchloader.cli.main import positive
from torchloader.cli.simulate import Workload, compared, many
from torchloader.scheduling import orders
from torchloader.scheduling.application import Node
from torchloader.scheduling.scheduler import Scheduler
from torchloader_papers.derived import derived
from torchloader_papers.gavel import AGNOSTIC, GAVEL
from torchloader_papers.gavel_models import gavel_jobs
from torchloader_papers.resizing import Resizing, simulated
from torchloader_papers.sizes import SIZES
from torchloader_papers.synergy import SYNERGY
from torchloader_papers.traces import FORMATS, read_trace, stretched

__all__ = ["main"]

_MOST = 1e9

_EPILOG = """\
examples (see also `torchloader simulate --help`):
  python -m torchloader_papers --trace cluster_log.csv --format helios --jobs 500 --nodes 16 --gpus 8 --cores 64
  python -m torchloader_papers --mix 20,70,10 --nodes 16 --gpus 8 --jobs 1000 --seeds 3 --policy synergy --policy static
                                                        the setting of Synergy's paper
  python -m torchloader_papers --mix gavel --kinds v100=9,p100=9,k80=9 --rate 4 --order gavel --order gavel-agnostic
                                                        the setting of Gavel's paper, on three kinds of GPUs
  python -m torchloader_papers --trace workload-1.csv --format pollux --nodes 16 --sizes pollux --sizes fixed --start 30
                                                        the setting of Pollux's paper: numbers of GPUs change

With --kinds, nodes have different kinds of GPUs, and a job the speed on each that is known of it: jobs of --mix gavel
and --format gavel. All GPUs of a job are of one kind. By arrival, tiresias and srtf a job gets the kind on which it is
fastest of those that are free; gavel gives the faster kinds to the jobs that gain most by them, and needs scipy for
that; gavel-agnostic gives each job equal times on all kinds.

A sizing (--sizes) decides how many GPUs a job has, in rounds of 60 s. It needs the trace's applications to be those of
Pollux: how fast they train with how many GPUs and which batch, and how much a sample of a large batch is worth, was
fitted to what Pollux's authors measured. A job ends when it has made the progress that it needs, and not after the
typical time of its class. With fixed, jobs have the GPUs and the batch of the trace, under each order. With pollux, sia
and optimus their rows are named POLICY+SIZING.

With --mix a job is an image, language or speech task, has one device (--several: up to eight), requests an equal share
of the cores and takes from half an hour to a week with that. With --mix gavel it has one of the 26 models of Gavel's
evaluation and one device, and takes as long on a V100.

Of public traces (https://github.com/msr-fiddle/philly-traces, S-Lab-System-Group/HeliosData, petuum/adaptdl for pollux,
siasosp23/artifacts for sia, alibaba/clusterdata for pai, stanford-futuredata/gavel) times and devices are used; the
loading of jobs is synthetic, as traces do not contain it.
"""


def parts(count: int) -> Callable[[str], tuple[float, ...]]:
    """Return a converter for `count` comma-separated numbers from 0 on, not all 0."""

    def read(text: str) -> tuple[float, ...]:
        try:
            found = tuple(map(float, text.split(",")))
        except ValueError:
            found = ()
        if len(found) != count or not all(0 <= each <= _MOST for each in found) or not sum(found) > 0:
            raise ArgumentTypeError(f"must be {count} numbers from 0 on, not all 0, such as 20,70,10, not {text}")
        return found

    return read


def mix(text: str) -> tuple[float, ...] | str:
    """Convert three proportions, as `parts(3)` does, or the name of a workload: gavel."""
    return text if text == "gavel" else parts(3)(text)


def counts(text: str) -> dict[str, int]:
    """Convert comma-separated NAME=NUMBER, each with another name and a number of at least 1."""
    pairs = [each.partition("=") for each in text.split(",")]
    found = {name.strip(): int(number) for name, _, number in pairs if name.strip() and number.strip().isdecimal()}
    if len(found) != len(pairs) or not all(1 <= number <= _MOST for number in found.values()):
        raise ArgumentTypeError(f"must be names with numbers of at least 1, such as v100=2,k80=4, not {text}")
    return found


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = simulate.parser()
    result.prog, result.epilog = "torchloader-papers", _EPILOG
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
    result.add_argument(
        "--kinds",
        type=counts,
        metavar="KIND=N,KIND=N",
        help="instead of --nodes: nodes with each kind of GPUs, such as v100=9,p100=9,k80=9",
    )
    return result


def _contradiction(arguments: argparse.Namespace) -> str:
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


def workloads(arguments: argparse.Namespace) -> list[Workload]:
    """Return the jobs of every seed, and the nodes for them."""
    if wrong := _contradiction(arguments):
        raise ValueError(wrong)
    if not (arguments.mix or arguments.trace):
        found = simulate.workloads(arguments)
        if arguments.kinds:
            print("torchloader-papers: --kinds: no job has speeds, so all kinds are equally fast", file=sys.stderr)
            found = [(jobs, _nodes(arguments)) for jobs, _ in found]
        return found
    nodes, seeds = _nodes(arguments), range(arguments.seed, arguments.seed + arguments.seeds)
    jobs_each, share = arguments.jobs or 100, arguments.cores / (arguments.gpus or 4)
    devices = sum(len(node.devices) for node in nodes.values())
    if arguments.mix == "gavel":
        return [(gavel_jobs(jobs_each, seed, arguments.rate or 4.0, share), nodes) for seed in seeds]
    if arguments.mix:
        rate, largest = arguments.rate or 9.0, devices if arguments.several else 1
        return [(derived(jobs_each, seed, arguments.mix, rate, share, largest), nodes) for seed in seeds]
    found = []
    for file, seed in itertools.product(arguments.trace, seeds):
        jobs = read_trace(file, arguments.format, seed, arguments.jobs, profiles=bool(arguments.sizes))
        fitting = [job for job in jobs if job.spec.size <= devices]
        if len(fitting) < len(jobs) and seed == arguments.seed:
            left = many(len(jobs) - len(fitting), "job")
            print(f"torchloader-papers: left out, as the cluster has {devices} devices: {left}", file=sys.stderr)
        if not fitting:
            raise ValueError(f"{file}: there is no job that ran on 1 to {devices} devices")
        found.append((stretched(fitting, devices, arguments.load) if arguments.load else fitting, nodes))
    return found


def _nodes(arguments: argparse.Namespace) -> dict[str, Node]:
    kinds = _spread(arguments.kinds) if arguments.kinds else [""] * (arguments.nodes or 4)
    gpus = tuple(range(arguments.gpus or 4))
    return {f"node{at}": Node(arguments.cores, gpus, kind=kind) for at, kind in enumerate(kinds)}


def _spread(kinds: Mapping[str, int]) -> list[str]:
    """Return the kind of each node. They alternate, so that who takes the first nodes gets a mixture."""
    order = sorted((place / number, kind) for kind, number in kinds.items() for place in range(number))
    return [kind for _, kind in order]


def schedulers(arguments: argparse.Namespace) -> list[Scheduler]:
    """Return one scheduler for each policy under each order, and with each sizing, which replaces the order."""
    chosen = dict.fromkeys(arguments.sizes or ["fixed"])
    made = simulate.schedulers(arguments) if "fixed" in chosen else []
    arguments.order = None
    for name in chosen:
        if name != "fixed":
            sizes = SIZES[name](arguments.start)
            for each in simulate.schedulers(arguments):
                made.append(Resizing(each.policy, each.mode, cost=each.cost, weigh=each.weigh, sizes=sizes))
    return made


def main(words: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit code, 2 if nothing could be simulated."""
    # Where this package is only on the path, and not installed, its entry points are not known.
    own = {each.name: each for each in (GAVEL, AGNOSTIC)}
    with mock.patch.dict(catalogue.POLICIES, {"synergy": SYNERGY}), mock.patch.dict(orders.ORDERS, own):
        return compared(parser(), sys.argv[1:] if words is None else words, workloads, schedulers, simulated)


if __name__ == "__main__":
    sys.exit(main())
