"""Policies that know how fast jobs train with how many workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchloader.allocation.exchange import improve
from torchloader.allocation.greedy import Table, deal
from torchloader.allocation.objectives import Objective
from torchloader.allocation.problem import Allocation, Demand

__all__ = ["Best", "MaxMin"]


@dataclass(frozen=True, slots=True)
class Best:
    """The allocation that makes the sum of an objective over all jobs largest.

    Exact where every job has one device; elsewhere dealt by what a core is worth, and improved by exchanges. Jobs get
    no worker that would not make them faster.

    Args:
        name: what users choose it by.
        objective: what to make large.
    """

    name: str
    objective: Objective

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        gain = self.objective.gain

        def rank(demand: Demand, workers: int) -> float:
            return gain(demand, workers) / demand.size

        table = Table(demands, cores)
        alone = all(size == 1 for size in table.sizes)
        deal(table, gain if alone else rank, range(len(table.demands)))
        if not alone:
            improve(table, self.objective, rank)
        return table.allocation()


@dataclass(frozen=True, slots=True)
class MaxMin:
    """Cores to the job that is busy for the smallest part of its time, then to the next: nobody is left behind.

    A job of twice the weight counts as served when it is twice as busy.
    """

    name: str = "max-min"

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        def rank(demand: Demand, workers: int) -> float:
            curve = demand.curve
            now = curve.throughput(workers)
            return demand.weight * curve.ceiling / now if curve.throughput(workers + 1) > now else 0.0

        table = Table(demands, cores)
        deal(table, rank, range(len(table.demands)))
        return table.allocation()
