"""The input and output of allocation policies."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torchloader.prediction.curve import Curve

# Workers per device, by the name of the job.
Allocation = dict[str, int]


@dataclass(frozen=True, slots=True)
class Demand:
    """A job that wants loading workers."""

    name: str  # the unique name of the job
    devices: Mapping[str, int]  # the number of its devices on each node, by node name
    curve: Curve  # the speed of one of its devices
    weight: float = 1.0  # the relative importance of its progress
    minimum: int = 1  # workers per device that it accepts
    maximum: int | None = None
    requested: int = 1  # workers per device that its submitter requested
    arrival: float = 0.0  # when it arrived, in seconds; earlier jobs take precedence where a policy has to choose
    remaining: float | None = None  # samples that it still has to train on, over all its devices; None if unknown

    def __post_init__(self) -> None:
        for is_right, expected in (
            (
                self.devices and min(self.devices.values()) > 0,
                f"a device on each node that it names, not {self.devices}",
            ),
            (math.isfinite(self.weight) and self.weight > 0, f"a positive weight, not {self.weight}"),
            (self.minimum >= 1, f"a minimum of at least 1 worker per device, not {self.minimum}"),
            (
                self.maximum is None or self.maximum >= self.minimum,
                f"a maximum that is not below minimum {self.minimum}",
            ),
        ):
            if not is_right:
                raise ValueError(f"job {self.name!r}: it needs {expected}")

    @property
    def size(self) -> int:
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
    """A sum over jobs that a policy maximizes."""

    value: Callable[[Demand, float], float]  # of a job that trains at some samples per second and device
    gain: Callable[[Demand, int], float]  # of its next worker per device: never negative, nor more than the last one's


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
    """Return the value of a sample per second and device: greater for jobs that will soon release their cores."""
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


Rank = Callable[[Demand, int], float]


class Table:
    """The workers of each job, and the free cores of every node. Each job begins with its minimum, in the order of
    arrival; a job for whose minimum cores are missing gets none, and later ones are still served."""

    def __init__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> None:
        self.demands = by_arrival(demands)
        index = {node: position for position, node in enumerate(sorted(cores))}
        self.free = [max(0, cores[node]) for node in sorted(cores)]
        self.steps = [
            [(index.get(node, -1), devices) for node, devices in sorted(demand.devices.items())]
            for demand in self.demands
        ]
        self.sizes = [demand.size for demand in self.demands]
        self.workers = [0] * len(self.demands)
        for job, demand in enumerate(self.demands):
            self.add(job, demand.minimum)

    def add(self, job: int, count: int = 1) -> bool:
        """Give a job `count` more workers per device (fewer if negative)."""
        free, steps = self.free, self.steps[job]
        for node, devices in steps:
            if node < 0 or free[node] < devices * count:
                return False
        for node, devices in steps:
            free[node] -= devices * count
        self.workers[job] += count
        return True

    def full(self, job: int) -> bool:
        """Return whether the job has its maximum, or is not running (0 workers)."""
        maximum = self.demands[job].maximum
        workers = self.workers[job]
        return workers == 0 or (maximum is not None and workers >= maximum)

    def allocation(self) -> Allocation:
        return {demand.name: workers for demand, workers in zip(self.demands, self.workers, strict=True)}


def deal(table: Table, rank: Rank, jobs: Iterable[int]) -> None:
    """Give steps to `jobs` while there are cores, always to the job of the highest rank."""
    demands, workers = table.demands, table.workers
    heap = [(-rank(demands[job], workers[job]), job) for job in jobs if not table.full(job)]
    heapq.heapify(heap)
    while heap:
        worth, job = heap[0]
        if worth >= 0:
            break
        if not table.add(job) or workers[job] == demands[job].maximum:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (-rank(demands[job], workers[job]), job))


@dataclass(frozen=True, slots=True)
class Dealt:
    """Gives each next step to the job of the highest rank, as nodes allow."""

    name: str
    rank: Rank

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        table = Table(demands, cores)
        deal(table, self.rank, range(len(table.demands)))
        return table.allocation()


EVEN = Dealt("even", lambda demand, workers: 1 / (workers * demand.size))
"""Gives each job the same number of cores, as nearly as steps and nodes allow, until all are used."""
PER_DEVICE = Dealt("gpu-proportional", lambda _, workers: 1 / workers)
"""Gives each device the same number of cores."""


@dataclass(frozen=True, slots=True)
class Static:
    """Gives each job what it requested, whether or not the nodes have it."""

    name: str = "static"

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        return {demand.name: demand.requested for demand in demands}


@dataclass(frozen=True, slots=True)
class Fifo:
    """Gives each job what it requested, in the order of arrival; the first that does not fit waits, and so do all after
    it. A job that requests more than an empty node has gets what that node has."""

    name: str = "fifo"

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        free = dict(cores)
        allocation = dict.fromkeys((demand.name for demand in demands), 0)
        for demand in by_arrival(demands):
            room = min(cores.get(node, 0) // devices for node, devices in demand.devices.items())
            workers = max(demand.minimum, min(demand.requested, demand.maximum or demand.requested, room))
            if any(free.get(node, 0) < devices * workers for node, devices in demand.devices.items()):
                break
            for node, devices in demand.devices.items():
                free[node] -= devices * workers
            allocation[demand.name] = workers
        return allocation
