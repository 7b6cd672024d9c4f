"""Policies that use a model of how fast jobs train with how many workers."""

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
    """Maximizes the sum of an objective over all jobs.

    Exact if every job has one device; otherwise dealt by value per core and improved by exchanges. No job gets a worker
    that would not make it faster.

    Args:
        name: the name of the policy for users.
        objective: the objective to maximize.
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
    """Gives each next step to the job that is busy for the smallest part of its time, in proportion to weight.

    A job of twice the weight counts as equally served when it is twice as busy.
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
