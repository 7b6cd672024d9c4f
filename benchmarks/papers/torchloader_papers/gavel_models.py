"""How fast the models of Gavel's evaluation train on three kinds of GPUs, and workloads of them.

The rates are measurements of Gavel's authors (stanford-futuredata/gavel, MIT licence,
`scheduler/oracle_throughputs_v3.json`, entries of one job on one device under v100, p100 and k80), rounded to three
digits. A model whose rate is 0 does not run on that kind.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import Spec
from torchloader.simulation.workload import Job
from torchloader_papers.derived import heavy_tailed

__all__ = ["KINDS", "SERVICES", "STEPS", "gavel_jobs", "speeds_of"]

KINDS = ("v100", "p100", "k80")
STEPS: Mapping[str, Mapping[int, tuple[float, float, float]]] = {
    "ResNet-18": {
        16: (32.4, 37.3, 4.91),
        32: (29.9, 41.6, 7.88),
        64: (24.1, 23.4, 7.23),
        128: (22.4, 13.0, 1.9),
        256: (11.9, 7.86, 0.941),
    },
    "ResNet-50": {
        16: (12.2, 9.81, 2.52),
        32: (7.93, 4.89, 1.42),
        64: (4.53, 2.62, 0.746),
        128: (2.53, 1.63, 0.0),
    },
    "Transformer": {
        16: (11.1, 9.76, 5.55),
        32: (9.68, 8.36, 3.66),
        64: (8.21, 5.09, 1.97),
        128: (5.64, 3.07, 1.03),
        256: (1.6, 1.7, 0.493),
    },
    "LM": {
        5: (114.0, 91.7, 26.1),
        10: (81.7, 82.5, 24.7),
        20: (64.7, 58.8, 17.6),
        40: (50.0, 37.9, 12.0),
        80: (31.7, 22.0, 6.64),
    },
    "Recommendation": {
        512: (254.0, 182.0, 58.8),
        1024: (151.0, 109.0, 34.8),
        2048: (88.2, 53.8, 18.9),
        4096: (45.8, 28.5, 8.34),
        8192: (22.2, 13.3, 3.96),
    },
    "CycleGAN": {
        1: (4.74, 2.4, 0.547),
    },
    "A3C": {
        1: (7.48, 5.74, 3.54),
    },
}
"""Steps per second on one device of each of `KINDS`, by the model and the samples of a step."""

# The data do not tell it. With six cores for a GPU, none of these models waits.
SERVICES: Mapping[str, float] = {
    "ResNet-18": 0.001,
    "ResNet-50": 0.008,
    "Transformer": 0.0005,
    "LM": 0.0005,
    "Recommendation": 0.00001,
    "CycleGAN": 0.016,
    "A3C": 0.001,
}
"""The seconds of a core that a sample is assumed to take, by the model."""


def speeds_of(model: str, batch: int, reference: str) -> dict[str, float]:
    """Return the speed of a model on each kind that it runs on, relative to the `reference` kind.

    Raises KeyError for a model or a batch that is not in `STEPS`.
    """
    steps = dict(zip(KINDS, STEPS[model][batch], strict=True))
    return {kind: rate / steps[reference] for kind, rate in steps.items() if rate > 0}


def gavel_jobs(jobs: int, seed: int, rate: float, share: float = 6.0) -> list[Job]:
    """Return a workload like those of Gavel's simulations with one device for each job ("continuous-single").

    The model of a job is drawn uniformly from the 26 of `STEPS`. Arrivals are a Poisson process, and a job's length is
    `heavy_tailed`. It is the length on a V100, by the mean completion of 15 to 18 hours that the guide to Gavel's
    artefact shows for an idle cluster. Equal arguments give equal jobs.

    Args:
        jobs: the number of jobs.
        seed: the seed of all random choices.
        rate: jobs that arrive per hour.
        share: cores per device, for which a job asks.

    Raises ValueError for numbers that are not positive.
    """
    if min(jobs, rate, share) <= 0:
        raise ValueError("jobs, rate and share must be positive")
    chance = random.Random(seed)
    types = [(model, batch) for model, batches in STEPS.items() for batch in batches]
    made, now = [], 0.0
    for number in range(jobs):
        model, batch = chance.choice(types)
        steps = STEPS[model][batch][0]
        iterations = max(1, round(heavy_tailed(chance) * steps))
        spec = Spec(
            f"{model.lower()}-{number}",
            model.lower(),
            1,
            batch,
            iterations,
            max(1, round(share)),
            arrival=now,
            speeds=speeds_of(model, batch, KINDS[0]),
        )
        made.append(Job(spec, Curve(steps * batch, SERVICES[model])))
        now += chance.expovariate(rate / 3600)
    return made
