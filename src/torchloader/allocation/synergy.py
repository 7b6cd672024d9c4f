"""Cores by what profiles of jobs say, and never fewer than make a job as fast as an equal share per device would.

Looking Beyond GPUs for DNN Scheduling on Multi-Tenant Clusters, OSDI 2022 (Synergy), the section on Synergy-TUNE: jobs
in turn, the largest first, get what makes them fastest; one for which that is not there gets what an equal share per
device is worth to it, and if not even that is there, those who have more than such a share give it back. Here that is
left to all from the start, which comes to the same. What is then left goes, in the same turn, to those who could still
use it, which the paper does not say. The paper shares memory in the same way, and chooses the nodes of jobs by both,
which is not here: jobs have the devices that they have.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchloader.allocation.greedy import Table
from torchloader.allocation.plain import PerDevice
from torchloader.allocation.problem import Allocation, Demand
from torchloader.prediction.curve import SAME

__all__ = ["Synergy"]

_MANY = 10**6  # workers, for a job that no number of them is enough for


@dataclass(frozen=True, slots=True)
class Synergy:
    """To each job what makes it fastest, and nobody slower than with the same number of cores to each device."""

    name: str = "synergy"

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        table = Table(demands, cores)
        shares = PerDevice()(demands, cores)
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
    """The fewest workers per device with which a job is as fast as it can be, or nearly where no number suffices."""
    curve = demand.curve
    most = _MANY if demand.maximum is None else demand.maximum
    if curve.shared > 0:
        most = math.ceil(min(most, (1 - SAME) / SAME * curve.service / curve.shared))
    return max(demand.minimum, curve.enough(max(1, most)))
