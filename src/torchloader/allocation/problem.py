"""The input and output of allocation policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torchloader.prediction.curve import Curve

# Workers per device, by the name of the job.
Allocation = dict[str, int]


@dataclass(frozen=True, slots=True)
class Demand:
    """A job that wants loading workers.

    Args:
        name: the unique name of the job.
        devices: the number of its devices on each node, by node name.
        curve: the speed of one of its devices.
        weight: the relative importance of its progress.
        minimum, maximum: the range of workers per device that it accepts; no upper bound by default.
        requested: workers per device that its submitter requested.
        arrival: when it arrived, in seconds; earlier jobs take precedence where a policy has to choose.
        remaining: samples that it still has to train on, over all its devices; None if unknown.
    """

    name: str
    devices: Mapping[str, int]
    curve: Curve
    weight: float = 1.0
    minimum: int = 1
    maximum: int | None = None
    requested: int = 1
    arrival: float = 0.0
    remaining: float | None = None

    def __post_init__(self) -> None:
        if not self.devices or min(self.devices.values()) < 1:
            raise ValueError(
                f"job {self.name!r}: it needs at least one device on each node that it names, not {self.devices}"
            )
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise ValueError(f"job {self.name!r}: weight must be positive, not {self.weight}")
        if self.minimum < 1:
            raise ValueError(f"job {self.name!r}: minimum must be at least 1 worker per device, not {self.minimum}")
        if self.maximum is not None and self.maximum < self.minimum:
            raise ValueError(f"job {self.name!r}: maximum {self.maximum} is below minimum {self.minimum}")

    @property
    def size(self) -> int:
        """The number of its devices on all nodes."""
        return sum(self.devices.values())


class Policy(Protocol):
    """A way to share the cores of each node among jobs. Equal demands and cores give equal allocations."""

    @property
    def name(self) -> str:
        """The name of the policy for users."""

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        """Return the workers per device of every job; `cores` are those for loading, by node."""


def used(demands: Sequence[Demand], allocation: Mapping[str, int]) -> dict[str, int]:
    """Return the cores that an allocation takes on each node."""
    found: dict[str, int] = {}
    for demand in demands:
        for node, devices in demand.devices.items():
            found[node] = found.get(node, 0) + devices * allocation.get(demand.name, 0)
    return found


def by_arrival(demands: Sequence[Demand]) -> list[Demand]:
    """Return the jobs in the order in which they are served: by arrival, then by name."""
    return sorted(demands, key=lambda demand: (demand.arrival, demand.name))


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
