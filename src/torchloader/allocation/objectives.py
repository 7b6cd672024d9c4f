"""Objectives of allocations: values that grow with a job's workers, by diminishing gains."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torchloader.allocation.problem import Demand


@dataclass(frozen=True, slots=True)
class Objective:
    """A sum over jobs that a policy maximizes.

    Args:
        value: returns the value of a job that trains at some samples per second and device.
        gain: returns the gain of the next worker per device, given the present number; never negative, and never more
            than that of the worker before.
    """

    value: Callable[[Demand, float], float]
    gain: Callable[[Demand, int], float]


def _log(demand: Demand, rate: float) -> float:
    return demand.weight * math.log(rate / demand.curve.ceiling) if rate > 0 else -math.inf


def _log_gain(demand: Demand, workers: int) -> float:
    # Written out, because sharing ten thousand cores asks for it ten thousand times.
    curve = demand.curve
    now = workers / (curve.service + curve.shared * workers)
    if now >= curve.ceiling:
        return 0.0
    more = workers + 1
    then = more / (curve.service + curve.shared * more)
    return demand.weight * math.log((then if then < curve.ceiling else curve.ceiling) / now)


def _linear(worth: Callable[[Demand], float]) -> Objective:
    def gain(demand: Demand, workers: int) -> float:
        return worth(demand) * (demand.curve.throughput(workers + 1) - demand.curve.throughput(workers))

    return Objective(lambda demand, rate: worth(demand) * rate, gain)


def _urgency(demand: Demand) -> float:
    """Return the value of a sample per second and device to a job: greater for jobs with little left, which soon
    release their cores."""
    speed = demand.curve.ceiling
    left = 1.0 if demand.remaining is None else max(demand.remaining, 1.0) / (demand.size * speed)
    return demand.weight / (speed * left)


PROPORTIONAL = Objective(_log, _log_gain)
"""Sum of weight * log(busy fraction): slowing one job by a tenth must speed up another by more than a tenth."""
TOTAL = _linear(lambda demand: demand.weight * demand.size)
"""Samples per second over all jobs, times their weights."""
BUSY = _linear(lambda demand: demand.weight * demand.size / demand.curve.ceiling)
"""Sum of weight * busy devices: the throughput of each job relative to its maximum."""
COMPLETION = _linear(_urgency)
"""Sum of speeds weighted by 1 / remaining time, for a short mean time to completion."""
