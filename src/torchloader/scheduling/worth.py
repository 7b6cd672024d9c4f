"""Weighs a change of workers against its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchloader.allocation.objectives import Objective
from torchloader.allocation.problem import Allocation, Demand, used

__all__ = ["Worth"]


@dataclass(frozen=True, slots=True)
class Worth:
    """The value of allocations: what jobs train until the next event, minus the time lost by changing them.

    Args:
        objective: the objective of the policy.
        demands: the jobs.
        before: workers per device of the running jobs.
        costs: seconds of training that a change costs each.
        seconds: the time until the next event.
    """

    objective: Objective
    demands: Sequence[Demand]
    before: Mapping[str, int]
    costs: Mapping[str, float]
    seconds: float

    def _job(self, demand: Demand, workers: int) -> float:
        moved = demand.name in self.before and workers != self.before[demand.name]
        part = max(1e-9, 1 - self.costs[demand.name] / self.seconds) if moved else 1.0
        return self.objective.value(demand, demand.curve.throughput(workers) * part)

    def of(self, allocation: Mapping[str, int]) -> float:
        """Return the sum of the values over all jobs that get workers."""
        return sum(self._job(each, allocation[each.name]) for each in self.demands if allocation[each.name] > 0)

    def without_idle_moves(self, allocation: Allocation, cores: Mapping[str, int]) -> Allocation:
        """Return the allocation without the changes that are not worth their cost individually, if there are cores to
        undo them."""
        found = dict(allocation)
        free = {node: cores.get(node, 0) - count for node, count in used(self.demands, found).items()}
        undone = True
        while undone:
            undone = False
            for each in sorted(self.demands, key=lambda each: each.name):
                had, has = self.before.get(each.name, 0), found[each.name]
                if had in (0, has) or self._job(each, had) < self._job(each, has):
                    continue
                if all(free[node] >= devices * (had - has) for node, devices in each.devices.items()):
                    for node, devices in each.devices.items():
                        free[node] -= devices * (had - has)
                    found[each.name] = had
                    undone = True
        return found
