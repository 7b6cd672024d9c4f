"""Gives unused cores to applications that may need more workers than estimated."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from torchloader.allocation.greedy import Table, deal
from torchloader.allocation.problem import Allocation, Demand

__all__ = ["with_headroom"]

_MANY = 10**6  # workers, for a job for which no number is enough


def with_headroom(
    demands: Sequence[Demand], allocation: Allocation, cores: Mapping[str, int], able: Collection[str], part: float
) -> Allocation:
    """Return the allocation with more workers for some jobs, from unused cores; no job gets fewer.

    A curve is never known exactly, and a worker too many costs nothing, while one too few leaves a device waiting. Jobs
    that are nearest to waiting come first.

    Args:
        demands: the jobs.
        allocation: workers per device, within the cores of each node.
        cores: cores for loading, by node.
        able: the names of jobs that may get more.
        part: the largest number of additional workers, as a fraction of what is estimated to be enough.
    """
    table = Table(demands, cores)
    changes = [allocation[demand.name] - table.workers[job] for job, demand in enumerate(table.demands)]
    for job in sorted(range(len(changes)), key=changes.__getitem__):  # what frees cores first
        table.add(job, changes[job])
    limits = {
        demand.name: math.ceil((1 + part) * demand.curve.enough(_MANY)) if demand.name in able else 0
        for demand in demands
    }

    def rank(demand: Demand, workers: int) -> float:
        return demand.curve.ceiling / demand.curve.loading(workers) if workers < limits[demand.name] else 0.0

    deal(table, rank, range(len(table.demands)))
    return table.allocation()
