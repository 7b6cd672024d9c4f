"""The jobs of a simulation: synthetic ones, which need very different numbers of workers, those of workload files, and
those of the event logs of live runs."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchloader.inputs.job import Devices
from torchloader.inputs.job import Job as Written
from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import Application, Node, Spec, State
from torchloader.scheduling.log import replay


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a simulation."""

    spec: Spec  # what is submitted
    curve: Curve  # the true speed of a device of speed 1
    believed: Curve | None = None  # the curve that the scheduler uses, if it differs

    @property
    def shortest(self) -> float:
        """The seconds that it would take on devices of speed 1 if it never waited for devices or data."""
        return self.spec.iterations * self.spec.batch / (self.spec.size * self.curve.ceiling)

    def stage(self, done: float) -> float:
        """Return the iteration at which its rate changes although nothing happens, or its last one."""
        return self.spec.iterations

    def rate(self, record: Application, curve: Curve, done: float) -> tuple[float, float]:
        """Return its iterations per second, and the part of the time in which its devices compute."""
        rate = curve.throughput(record.workers)
        return rate * record.size / record.spec.batch, rate / curve.ceiling


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job."""

    arch: str  # the architecture of the model
    ceiling: float  # samples per second of one device that never waits
    service: float  # seconds of a core to load a sample
    batch: int  # samples of one device in an iteration


MIX = (
    Kind("alexnet", 2600, 0.008, 256),
    Kind("resnet18", 1200, 0.008, 128),
    Kind("googlenet", 900, 0.008, 128),
    Kind("mobilenet_v2", 800, 0.008, 128),
    Kind("resnet50", 380, 0.008, 64),
    Kind("densenet121", 320, 0.008, 64),
    Kind("vgg16", 230, 0.008, 64),
    Kind("unet3d", 40, 0.250, 8),
    Kind("m5", 1500, 0.005, 256),
    Kind("bert", 120, 0.001, 32),
)
"""The kinds of a synthetic workload. Rates are typical of older GPUs in mixed precision, service times of a core that
decodes and augments a photograph (8 ms), a volume, a recording or a text. One to 21 workers keep up with a device."""

_DEVICES = (1, 1, 1, 1, 2, 2, 4, 8)  # most jobs of public traces have one
_SPREAD = 0.8  # of the logarithm of a job's length


def job_of(name: str, kind: Kind, devices: int, seconds: float, arrival: float, chance: random.Random) -> Job:
    """Return a job of a kind, with rates that vary slightly from job to job."""
    ceiling = kind.ceiling * chance.uniform(0.8, 1.25)
    curve = Curve(ceiling, kind.service * chance.uniform(0.8, 1.25), chance.uniform(0, 0.1) / ceiling)
    batch = kind.batch * devices
    iterations = max(1, round(seconds * ceiling * devices / batch))
    workers = devices * chance.choice((2, 4, 8))  # requests of users are hardly related to the need
    return Job(Spec(name, kind.arch, devices, batch, iterations, workers, arrival=arrival), curve)


def synthetic(
    jobs: int, seed: int, devices: int, load: float = 1.0, minutes: float = 10.0, largest: int = 4
) -> list[Job]:
    """Return jobs that arrive independently of each other (a Poisson process). Equal arguments give equal jobs."""
    if min(jobs, devices, load, minutes, largest) <= 0:
        raise ValueError("jobs, devices, load, minutes and largest must be positive")
    chance = random.Random(seed)
    sizes = [size for size in _DEVICES if size <= min(devices, largest)]
    shapes = [
        (chance.choice(MIX), chance.choice(sizes), 60 * minutes * chance.lognormvariate(0, _SPREAD))
        for _ in range(jobs)
    ]
    work = sum(size * seconds for _, size, seconds in shapes) / jobs
    made, now = [], 0.0
    for number, (kind, size, seconds) in enumerate(shapes):
        made.append(job_of(f"{kind.arch}-{number}", kind, size, seconds, now, chance))
        now += chance.expovariate(load * devices / work)
    return made


def mistaken(jobs: Sequence[Job], error: float, seed: int) -> list[Job]:
    """Return the jobs with wrong curves for the scheduler, which stay wrong as long as they run."""
    chance = random.Random(seed)
    return [
        replace(
            job,
            believed=replace(
                job.curve,
                ceiling=job.curve.ceiling * chance.lognormvariate(0, error),
                service=job.curve.service * chance.lognormvariate(0, error),
            ),
        )
        for job in jobs
    ]


# Samples per second of the networks that workloads name, typical of older GPUs; _SERVICE is the seconds in which a core
# decodes and augments a photograph.
_CEILINGS = {
    "resnet-10": 1800.0,
    "resnet-18": 1200.0,
    "resnet-34": 700.0,
    "resnet-50": 380.0,
    "resnet-101": 220.0,
    "resnet-152": 150.0,
    "vgg-11": 450.0,
    "vgg-13": 300.0,
    "vgg-16": 230.0,
    "vgg-19": 190.0,
    "googlenet-1": 900.0,
}
_SERVICE = 0.008


def nodes_for(jobs: Sequence[Job], count: int, cores: int, devices: int) -> dict[str, Node]:
    """Return nodes with all hosts and device indexes that jobs name, at least `count` with `devices` each."""
    named = [job.spec.devices for job in jobs if not isinstance(job.spec.devices, int)]
    names = {name for placement in named for name in placement}
    fresh = (name for name in map("node{}".format, itertools.count()) if name not in names)
    names |= set(itertools.islice(fresh, max(0, count - len(names))))
    indexes = [index for placement in named for each in placement.values() for index in each]
    return {
        name: Node(cores, tuple(range(max([devices, *(index + 1 for index in indexes)])))) for name in sorted(names)
    }


def jobs_of_workload(jobs: Sequence[Written]) -> list[Job]:
    """Return the jobs of a workload file, each with a typical speed of its network."""
    found = []
    for job in jobs:
        if job.iterations is None:
            raise ValueError(f"job {job.name!r}: its end_iter is 0, so only its data says when it ends; give end_iter")
        spec = job.spec(_devices(job.devices), job.iterations)
        if spec.arch not in _CEILINGS:
            reason = f"it is not known how fast {spec.arch} trains; run it, and simulate its log"
            raise ValueError(f"job {job.name!r}: {reason}")
        found.append(Job(spec, Curve(_CEILINGS[spec.arch], _SERVICE)))
    return found


def _devices(devices: Devices) -> dict[str, tuple[int, ...]] | int:
    if devices.anywhere:
        return devices.anywhere
    names = devices.nodes or tuple(f"node{number}" for number in range(len(devices.by_node)))
    return dict(zip(names, devices.by_node, strict=True))


def jobs_of_log(path: str | os.PathLike[str]) -> list[Job]:
    """Return the jobs of a live run, each with the curve that was measured last. Those that never ran are left out."""
    jobs = []
    for each in replay(path).values():
        if each.curve is not None:
            # If only the data determined its end, the end is known now.
            ended = max(1, round(each.progress)) if each.state is State.FINISHED else each.spec.iterations
            jobs.append(Job(replace(each.spec, iterations=ended), each.curve))
    if not jobs:
        raise ValueError(f"{path}: no job ran for so long that its throughput was measured")
    return jobs
