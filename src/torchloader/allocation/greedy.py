"""Deals out cores one step at a time, each to the job that gains the most from it.

A step of a job is one more worker for each of its devices: it takes as many cores on each node as the job has devices
there. With steps of one core and values with diminishing gains the result is optimal (Gross 1956; Federgruen and
Groenevelt 1986).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

from torchloader.allocation.problem import Allocation, Demand, by_arrival

Rank = Callable[[Demand, int], float]


class Table:
    """The workers of each job, and the free cores of every node.

    Each job begins with its minimum, in the order of arrival; a job for whose minimum cores are missing gets none, and
    later ones are still served.

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
        """Give a job `count` more workers per device (fewer if negative). Returns False, without a change, if cores are
        missing."""
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
    """Give steps to `jobs` while there are cores, always to the job of the highest rank. Returns the jobs that got
    them, in order.

    Args:
        table: the jobs and cores; it is changed.
        rank: returns how much the next worker per device is worth to a job that has so many; 0 for nothing. A step that
            does not fit ends the dealing only for its job. Among equals the earliest is served.
        jobs: indexes of jobs in the table.
    """
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
