"""Deals out cores one step at a time, each to the job that gains the most from it.

A step of a job is one more worker for each of its devices: it takes as many cores on each node as the job has devices
there. With steps of one core and values with diminishing gains the result is optimal (Gross 1956; Federgruen and
Groenevelt 1986).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchloader.allocation.problem import Allocation, Demand, by_arrival

Rank = Callable[[Demand, int], float]


class Table:
    """The workers of each job, and the free cores of every node. Each job begins with its minimum, in the order of
    arrival; a job for whose minimum cores are missing gets none, and later ones are still served.

    Args:
        demands: the jobs.
        cores: cores for loading, by node; a node that is not named has none.
    """

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
        """Return the workers per device, by job name."""
        return {demand.name: workers for demand, workers in zip(self.demands, self.workers, strict=True)}


def deal(table: Table, rank: Rank, jobs: Iterable[int]) -> list[int]:
    """Give steps to `jobs` while there are cores, always to the job of the highest rank."""
    demands, workers, dealt = table.demands, table.workers, []
    heap = [(-rank(demands[job], workers[job]), job) for job in jobs if not table.full(job)]
    heapq.heapify(heap)
    while heap:
        worth, job = heap[0]
        if worth >= 0:
            break
        if not table.add(job):
            heapq.heappop(heap)
            continue
        dealt.append(job)
        demand = demands[job]
        if workers[job] == demand.maximum:
            heapq.heappop(heap)
        else:
            heapq.heapreplace(heap, (-rank(demand, workers[job]), job))
    return dealt


@dataclass(frozen=True, slots=True)
class Even:
    """Gives each job the same number of cores, as nearly as steps and nodes allow, until all are used."""

    name: str = "even"

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        table = Table(demands, cores)
        deal(table, lambda demand, workers: 1 / (workers * demand.size), range(len(table.demands)))
        return table.allocation()


@dataclass(frozen=True, slots=True)
class PerDevice:
    """Gives each device the same number of cores."""

    name: str = "gpu-proportional"

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        table = Table(demands, cores)
        deal(table, lambda _, workers: 1 / workers, range(len(table.demands)))
        return table.allocation()


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
