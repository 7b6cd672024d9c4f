"""Workloads as papers on schedulers derive them from the Philly trace: heavy-tailed jobs of three classes of tasks.

A job takes 10^x minutes, with x uniform between 1.5 and 3 for four of five jobs, and between 3 and 4 for the fifth;
arrivals are a Poisson process. Gavel (OSDI 2020, section 7.1) and Synergy (OSDI 2022, section 5.1) are evaluated on
such workloads. A job's length is the time that it takes with an equal share of the cores per device: allocating cores
by need makes some jobs shorter.

The sensitivity of models to cores is from Synergy's section 2 where it is given: AlexNet gains 3.1 times from 12 cores
over 3, and ResNet-18 2.3 times from 9. The others are set by similarity, and language models need one core.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import Spec
from torchloader.simulation.workload import Job

__all__ = ["MODELS", "Model", "derived", "heavy_tailed"]

_PROFILED = 3  # cores per device to which gains are relative
_RATE = 100.0  # samples per second of a device that never waits: only the ratios of rates matter
_BATCH = 100
_SIZES = (1,) * 14 + (2,) * 2 + (4,) * 3 + (8,)  # as Gavel: 70 % on one device, 25 % on two to four, 5 % on eight


@dataclass(frozen=True, slots=True)
class Model:
    """The sensitivity of a model to cores.

    Args:
        arch: its name.
        cores: the number of cores per device that is enough.
        gain: its speed with these relative to that with three.
    """

    arch: str
    cores: int
    gain: float

    @property
    def curve(self) -> Curve:
        """The curve through both points."""
        if self.cores <= _PROFILED:
            return Curve(_RATE, self.cores / _RATE)
        shared = (self.cores - _PROFILED * self.gain) / (_RATE * (self.cores - _PROFILED))
        return Curve(_RATE, _PROFILED * (self.gain / _RATE - shared), shared)


MODELS: tuple[tuple[Model, ...], ...] = (
    (
        Model("alexnet", 12, 3.1),
        Model("shufflenet", 12, 3.1),
        Model("resnet18", 9, 2.3),
        Model("mobilenet_v2", 9, 2.3),
        Model("resnet50", 4, 1.3),
    ),
    (Model("gnmt", 1, 1.0), Model("lstm", 1, 1.0), Model("transformer_xl", 1, 1.0)),
    (Model("m5", 6, 1.8), Model("deepspeech", 4, 1.3)),
)
"""The models of image, language and speech tasks."""


def heavy_tailed(chance: random.Random) -> float:
    """Return the seconds of a job: from half an hour to a week, above 17 hours for one of five jobs."""
    low, high = (1.5, 3.0) if chance.random() < 0.8 else (3.0, 4.0)
    return float(60 * 10 ** chance.uniform(low, high))


def derived(jobs: int, seed: int, mix: Sequence[float], rate: float, share: float = 3.0, largest: int = 1) -> list[Job]:
    """Return the jobs of a workload that is derived from the Philly trace. Equal arguments give equal jobs.

    Args:
        jobs: the number of jobs.
        seed: the seed of all random choices.
        mix: the proportions of image, language and speech tasks.
        rate: jobs that arrive per hour.
        share: cores per device with which a job takes its length.
        largest: the largest number of devices of a job.

    Raises ValueError for a mix that is not of three parts, and for numbers that are not positive.
    """
    if len(mix) != len(MODELS) or min(mix) < 0 or sum(mix) <= 0:
        raise ValueError(f"a mix has three parts, of image, language and speech tasks, not {', '.join(map(str, mix))}")
    if min(jobs, rate, share, largest) <= 0:
        raise ValueError("jobs, rate, share and largest must be positive")
    chance = random.Random(seed)
    sizes = [size for size in _SIZES if size <= largest]
    made, now = [], 0.0
    for number in range(jobs):
        model = chance.choice(chance.choices(MODELS, mix)[0])
        seconds = heavy_tailed(chance)
        devices = chance.choice(sizes)
        curve = model.curve
        iterations = max(1, round(seconds * curve.throughput(share) / _BATCH))
        workers = max(1, round(devices * share))
        spec = Spec(f"{model.arch}-{number}", model.arch, devices, _BATCH * devices, iterations, workers, arrival=now)
        made.append(Job(spec, curve))
        now += chance.expovariate(rate / 3600)
    return made
