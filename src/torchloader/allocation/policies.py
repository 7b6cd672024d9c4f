"""Policies that use a model of how fast jobs train with how many workers."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchloader.allocation.greedy import Rank, Table, deal
from torchloader.allocation.problem import Allocation, Demand, Objective

_WORK = 12_000  # jobs looked at: far more than tens of jobs need, and some hundredths of a second for a thousand
_NEAR = 24  # jobs that cores taken back are dealt to: those to which a core is worth most


def improve(table: Table, objective: Objective, rank: Rank) -> None:
    """Exchange steps while that increases the sum of the objective, within a bounded amount of work."""
    groups = _mixed(table)
    total = sum(map(len, groups))
    for group in groups:
        _Group(table, objective, rank, group).improve(_WORK * len(group) // total)


def _mixed(table: Table) -> list[list[int]]:
    """Return the groups of competing jobs, without those for which dealing is exact (one node, and steps of one
    size)."""
    parent = list(range(len(table.free)))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    active = [job for job, workers in enumerate(table.workers) if workers > 0]
    for job in active:
        first = root(table.steps[job][0][0])
        for node, _ in table.steps[job][1:]:
            parent[root(node)] = first
    groups: dict[int, list[int]] = {}
    for job in active:
        groups.setdefault(root(table.steps[job][0][0]), []).append(job)
    return [group for group in groups.values() if len({tuple(table.steps[job]) for job in group}) > 1]


class _Group:
    """Jobs that compete for the cores of the same nodes."""

    def __init__(self, table: Table, objective: Objective, rank: Rank, jobs: list[int]) -> None:
        self._table, self._objective, self._rank, self._jobs = table, objective, rank, jobs
        self._work = 0
        self._at: dict[int, list[int]] = {}
        for job in jobs:
            for node, _ in table.steps[job]:
                self._at.setdefault(node, []).append(job)

    def improve(self, work: int) -> None:
        self._work = work
        better = True
        while better and self._work > 0:
            better = False
            for givers, taker in self._exchanges():
                if self._exchange(givers, taker):
                    better = True
                if self._work <= 0:
                    break

    def _loss(self, job: int, given: int = 0) -> float:
        """Return the value per core of a job's last worker, after it has given `given` workers."""
        table = self._table
        return self._objective.gain(table.demands[job], table.workers[job] - given - 1) / table.sizes[job]

    def _can_give(self, job: int, count: int = 1) -> bool:
        return self._table.workers[job] - count >= self._table.demands[job].minimum

    def _worth(self, job: int) -> float:
        """Return the value per core of a job's next worker; 0 if it may have none."""
        return 0.0 if self._table.full(job) else self._rank(self._table.demands[job], self._table.workers[job])

    def _exchanges(self) -> Iterator[tuple[dict[int, int], int | None]]:
        """Yield (steps to take from which jobs, job to serve first or None), the most promising exchanges first."""
        self._work -= len(self._jobs)
        worths = {job: self._worth(job) * self._table.sizes[job] for job in self._jobs}
        for taker in sorted((job for job in self._jobs if worths[job] > 0), key=lambda job: (-worths[job], job)):
            givers = self._room(taker) if self._worth(taker) > 0 else {}
            if givers:
                yield givers, taker
        able = sorted((job for job in self._jobs if self._can_give(job)), key=lambda job: (self._loss(job), job))
        for count in (1, 2, 3):
            for job in able:
                if self._can_give(job, count):
                    yield {job: count}, None
        for place, second in enumerate(able):
            for first in able[:place]:
                if self._can_give(first) and self._can_give(second):
                    yield {first: 1, second: 1}, None

    def _room(self, taker: int) -> dict[int, int]:
        """Return the steps of other jobs that lose the least and together make room for one of the taker's; empty if
        impossible."""
        table = self._table
        lacking = {
            node: devices - table.free[node] for node, devices in table.steps[taker] if devices > table.free[node]
        }
        heap = [
            (self._loss(job), job)
            for job in {job for node in lacking for job in self._at[node]}
            if job != taker and self._can_give(job)
        ]
        self._work -= len(heap)
        heapq.heapify(heap)
        givers: dict[int, int] = {}
        while heap and any(count > 0 for count in lacking.values()):
            _, job = heapq.heappop(heap)
            if not any(lacking.get(node, 0) > 0 for node, _ in table.steps[job]):
                continue
            givers[job] = givers.get(job, 0) + 1
            for node, devices in table.steps[job]:
                if node in lacking:
                    lacking[node] -= devices
            if self._can_give(job, givers[job] + 1):
                heapq.heappush(heap, (self._loss(job, givers[job]), job))
        return {} if any(count > 0 for count in lacking.values()) else givers

    def _exchange(self, givers: dict[int, int], taker: int | None) -> bool:
        """Take steps from the givers and deal the cores again."""
        table, workers = self._table, self._table.workers
        beside = {job for giver in givers for node, _ in table.steps[giver] for job in self._at[node]}
        self._work -= len(beside)
        worths = {job: self._worth(job) for job in beside if job not in givers}
        near = sorted((job for job in worths if worths[job] > 0), key=lambda job: (-worths[job], job))
        if len(near) > _NEAR:
            near = [*near[:_NEAR], *([taker] if taker is not None and taker not in near[:_NEAR] else [])]
        if not near:
            return False
        before = {job: workers[job] for job in (*givers, *near)}
        # Either by what a core is worth, or the largest steps first, which fill what is left better.
        for order in (self._rank, self._objective.gain):
            for job, count in givers.items():
                table.add(job, -count)
            if taker is not None:
                table.add(taker)
            deal(table, order, near)
            deal(table, self._rank, givers)
            if self._change(before) > 1e-12:
                return True
            for job, had in sorted(before.items(), key=lambda item: item[1] - workers[item[0]]):
                table.add(job, had - workers[job])
        return False

    def _change(self, before: dict[int, int]) -> float:
        change = 0.0
        for job, had in before.items():
            now, demand = self._table.workers[job], self._table.demands[job]
            if now != had:
                value, curve = self._objective.value, demand.curve
                change += value(demand, curve.throughput(now)) - value(demand, curve.throughput(had))
        return change


@dataclass(frozen=True, slots=True)
class Best:
    """Maximizes the sum of an objective over all jobs. Exact if every job has one device; otherwise dealt by value per
    core and improved by exchanges. No job gets a worker that would not make it faster.

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
    """Gives each next step to the job that is busy for the smallest part of its time, in proportion to weight. A job of
    twice the weight counts as equally served when it is twice as busy."""

    name: str = "max-min"

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        def rank(demand: Demand, workers: int) -> float:
            curve = demand.curve
            now = curve.throughput(workers)
            return demand.weight * curve.ceiling / now if curve.throughput(workers + 1) > now else 0.0

        table = Table(demands, cores)
        deal(table, rank, range(len(table.demands)))
        return table.allocation()
