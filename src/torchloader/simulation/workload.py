"""Synthetic workloads: random arrivals of a mix of models that need very different numbers of workers."""

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
        arch: the architecture of the model.
        ceiling: samples per second of one device that never waits.
        service: seconds of a core to load a sample.
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
"""The kinds of a synthetic workload. Rates are typical of older GPUs in mixed precision, service times of a core that
decodes and augments a photograph (8 ms), a volume, a recording or a text. One to 21 workers keep up with a device."""

_DEVICES = (1, 1, 1, 1, 2, 2, 4, 8)  # most jobs of public traces have one
_SPREAD = 0.8  # of the logarithm of a job's length


def job_of(name: str, kind: Kind, devices: int, seconds: float, arrival: float, chance: random.Random) -> Job:
    """Return a job of a kind, with rates that vary slightly from job to job.

    Args:
        name: the name of the job.
        kind: what it trains.
        devices: the number of its devices.
        seconds: the time that it takes if it never waits.
        arrival: when it arrives, in seconds.
        chance: the source of random numbers.
    """
    ceiling = kind.ceiling * chance.uniform(0.8, 1.25)
    curve = Curve(ceiling, kind.service * chance.uniform(0.8, 1.25), chance.uniform(0, 0.1) / ceiling)
    batch = kind.batch * devices
    iterations = max(1, round(seconds * ceiling * devices / batch))
    workers = devices * chance.choice((2, 4, 8))  # requests of users are hardly related to the need
    return Job(Spec(name, kind.arch, devices, batch, iterations, workers, arrival=arrival), curve)


def synthetic(
    jobs: int, seed: int, devices: int, load: float = 1.0, minutes: float = 10.0, largest: int = 4
) -> list[Job]:
    """Return jobs that arrive independently of each other (a Poisson process). Equal arguments give equal jobs.

    Args:
        jobs: the number of jobs.
        seed: the seed of all random choices.
        devices: the number of devices of the cluster.
        load: work that arrives per second, relative to the capacity of all devices if they never wait for data.
        minutes: the median time of a job that never waits; a tenth of the jobs takes nearly three times that.
        largest: the largest number of devices of a job.

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
    """Return the jobs with wrong curves for the scheduler, which stay wrong as long as they run.

    Args:
        jobs: the jobs.
        error: standard deviation of the logarithm of the estimates of a job's ceiling and of its loading; 0.1 is about
            10 %.
        seed: the seed of the errors.
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
