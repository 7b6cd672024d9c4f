"""Synergy's sharing of cores.

Looking Beyond GPUs for DNN Scheduling on Multi-Tenant Clusters, OSDI 2022, where it is called Synergy-TUNE.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchloader.allocation.problem import PER_DEVICE, Allocation, Demand, Table
from torchloader.prediction.curve import SAME

__all__ = ["SYNERGY", "Synergy"]

_MANY = 10**6  # workers, for a job that no number of them is enough for


@dataclass(frozen=True, slots=True)
class Synergy:
    """Gives each job what makes it fastest, and none less speed than the same number of cores for each device would."""

    name: str = "synergy"

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        table = Table(demands, cores)
        shares = PER_DEVICE(demands, cores)
        best = [_best(demand) for demand in table.demands]
        least = [min(want, shares[demand.name]) for want, demand in zip(best, table.demands, strict=True)]
        for job, floor in enumerate(least):  # they all fit, as the shares do
            table.add(job, floor - table.workers[job])
        turn = sorted(
            (job for job, workers in enumerate(table.workers) if workers > 0),
            key=lambda job: (-table.sizes[job], -best[job] * table.sizes[job], job),
        )
        for job in turn:
            table.add(job, best[job] - least[job])
        for job in turn:
            while table.workers[job] < best[job] and table.add(job):
                pass
        return table.allocation()


def _best(demand: Demand) -> int:
    """Return the fewest workers per device with which a job is as fast as possible, or nearly so where no number
    suffices."""
    curve = demand.curve
    most = _MANY if demand.maximum is None else demand.maximum
    if curve.shared > 0:
        most = math.ceil(min(most, (1 - SAME) / SAME * curve.service / curve.shared))
    return max(demand.minimum, curve.enough(max(1, most)))


SYNERGY = Synergy()
