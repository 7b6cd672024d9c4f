"""Made-up workloads: jobs that arrive by chance, of a mix of models that need very different numbers of workers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import Spec
from torchloader.simulation.job import Job

__all__ = ["MIX", "Kind", "job_of", "mistaken", "synthetic"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of job.

    Args:
        arch: of the model.
        ceiling: samples per second of one device.
        service: seconds of a core that a sample takes to load.
        batch: samples of one device in an iteration.
    """

    arch: str
    ceiling: float
    service: float
    batch: int


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
"""Rates of the order that GPUs of some years ago reach in mixed precision, and of the time that a core takes to
decode and augment a photograph (8 ms), a volume, a recording or a text. From one to 21 workers keep up with a
device."""

_DEVICES = (1, 1, 1, 1, 2, 2, 4, 8)  # most jobs of public traces have one
_SPREAD = 0.8  # of the logarithm of a job's length


def job_of(name: str, kind: Kind, devices: int, seconds: float, arrival: float, chance: random.Random) -> Job:
    """A job of a kind, whose rates differ a little from those of others.

    Args:
        name: of the job.
        kind: what it trains.
        devices: how many.
        seconds: that it takes when it never waits.
        arrival: when it comes, in seconds.
        chance: what is random of it.
    """
    ceiling = kind.ceiling * chance.uniform(0.8, 1.25)
    curve = Curve(ceiling, kind.service * chance.uniform(0.8, 1.25), chance.uniform(0, 0.1) / ceiling)
    batch = kind.batch * devices
    iterations = max(1, round(seconds * ceiling * devices / batch))
    workers = devices * chance.choice((2, 4, 8))  # what people ask for has little to do with what is needed
    return Job(Spec(name, kind.arch, devices, batch, iterations, workers, arrival=arrival), curve)


def synthetic(
    jobs: int, seed: int, devices: int, load: float = 1.0, minutes: float = 10.0, largest: int = 4
) -> list[Job]:
    """Jobs that arrive independently of each other (a Poisson process). Equal arguments give equal jobs.

    Args:
        jobs: how many.
        seed: of all that is random.
        devices: of the cluster.
        load: work that arrives in a second, as a part of what all devices do in it if they never wait for data.
        minutes: the median time that a job takes when it never waits; a tenth takes nearly three times that.
        largest: number of devices of a job.

    Raises ValueError for numbers that are not positive.
    """
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
    """The same jobs, of which the scheduler has wrong beliefs for as long as they run.

    Args:
        jobs: that are made so.
        error: standard deviation of the logarithm of what is believed of a job's ceiling and of its loading; 0.1 is
            about 10 %.
        seed: of the errors.
    """
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
