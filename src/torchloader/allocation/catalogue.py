"""The allocation policies by name: those that were published and ours, with the allocations that they may choose."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TypeVar

from torchloader.allocation import problem
from torchloader.allocation.problem import Allocation, Demand, Objective, Policy, Rank, Table, by_arrival, deal, used

_WORK = 12_000  # jobs looked at: far more than tens of jobs need, and some hundredths of a second for a thousand
_NEAR = 24  # jobs that cores taken back are dealt to: those to which a core is worth most


def improve(table: Table, objective: Objective, rank: Rank) -> None:
    """Exchange steps while that increases the sum of the objective, within a bounded amount of work."""
    groups = _mixed(table)
    total = sum(map(len, groups))
    for group in groups:
        _Group(table, objective, rank, group).improve(_WORK * len(group) // total)


def _mixed(table: Table) -> list[list[int]]:
    """Return the groups of competing jobs for which dealing is not exact: over several nodes, or in steps of several
    sizes."""
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
        """Return the steps of other jobs that lose the least and make room for one of the taker's, if any do."""
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
    core and improved by exchanges. No job gets a worker that would not make it faster."""

    name: str  # the name of the policy for users
    objective: Objective  # the objective to maximize

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


def _idleness(demand: Demand, workers: int) -> float:
    """Return how many times its present rate a job could compute, times its weight; 0 if a worker would not help. A job
    of twice the weight counts as equally served when it is twice as busy."""
    now = demand.curve.throughput(workers)
    return demand.weight * demand.curve.ceiling / now if demand.curve.throughput(workers + 1) > now else 0.0


MAX_MIN = problem.Dealt("max-min", _idleness)


def maximizes(policy: Policy) -> bool:
    """Return whether a policy gives no job a worker that would not make it faster."""
    return isinstance(policy, Best) or policy is MAX_MIN


def _wanted(demand: Demand) -> float:
    """Return the workers per device that load as fast as it computes, from the rate of one worker."""
    return demand.curve.ceiling / demand.curve.loading(1)


@dataclass(frozen=True, slots=True)
class Trim:
    """Gives each job what it needs plus one; over budget, those with the most slack give back a worker in turn. Slack
    is the number of workers, over all devices, that a job has beyond its need, rounded up; among equals the largest
    demand gives first. No job falls below one worker per device, so the allocation can stay over budget; and as nodes
    are not distinguished, a single node can be over-subscribed at any time."""

    name: str = "waa-trim"

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        needs = {demand.name: math.floor(_wanted(demand)) + 1 for demand in demands}
        order = sorted(
            demands,
            key=lambda demand: (
                -math.ceil(demand.size * (needs[demand.name] - _wanted(demand))),
                -demand.size * needs[demand.name],
                demand.arrival,
                demand.name,
            ),
        )
        over = sum(demand.size * needs[demand.name] for demand in demands) - sum(cores.values())
        while over > 0 and any(need > 1 for need in needs.values()):
            for demand in order:
                if over > 0 and needs[demand.name] > 1:
                    needs[demand.name] -= 1
                    over -= demand.size
        return needs


@dataclass(frozen=True, slots=True)
class Fill:
    """Deals scarce cores to the fastest jobs first, and abundant ones in proportion to what jobs need. A job needs two
    workers more than it uses. Where cores are scarce, each job in turn, the fastest device first, gets one worker per
    device until it has what it needs or there are no cores; the last one may take more than there are. Where cores are
    abundant all are given out, useful or not, and the remainder of rounding is dealt in turn."""

    name: str = "waa-fill"

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        needs = {demand.name: math.floor(_wanted(demand)) + 2 for demand in demands}
        order = sorted(demands, key=lambda demand: (-demand.curve.ceiling, demand.arrival, demand.name))
        left = sum(cores.values())
        asked = sum(demand.size * needs[demand.name] for demand in demands)
        if asked > left:
            shares = dict.fromkeys(needs, 0)
            while left > 0 and shares != needs:
                for demand in order:
                    if left > 0 and shares[demand.name] < needs[demand.name]:
                        shares[demand.name] += 1
                        left -= demand.size
            return shares
        shares = {name: left * need // asked for name, need in needs.items()} if asked else {}
        left -= sum(demand.size * shares[demand.name] for demand in demands)
        while left > 0 and demands:
            for demand in order:
                if left > 0:
                    shares[demand.name] += 1
                    left -= demand.size
        return shares


@dataclass(frozen=True, slots=True)
class WithinBudget:
    """A policy whose allocations are corrected to fit the nodes. Each job gets its minimum in the order of arrival
    while cores suffice, else none; none gets more than its maximum. On an over-subscribed node the job with the most
    workers per device gives one back, repeatedly, until all fit; among equals the latest."""

    policy: Policy  # the policy to correct

    @property
    def name(self) -> str:
        return self.policy.name

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        wanted = self.policy(demands, cores)
        least = Table(demands, cores).allocation()
        allocation = {}
        for demand in demands:
            most = demand.maximum if demand.maximum is not None else max(wanted[demand.name], demand.minimum)
            bounded = min(max(wanted[demand.name], demand.minimum), most)
            allocation[demand.name] = bounded if least[demand.name] else 0
        taken = used(demands, allocation)
        ordered = by_arrival(demands)
        for node in sorted(taken):
            here = [demand for demand in ordered if node in demand.devices]
            while taken[node] > cores.get(node, 0):
                giver = max(
                    (place for place, demand in enumerate(here) if allocation[demand.name] > least[demand.name]),
                    key=lambda place: (allocation[here[place].name], place),
                )
                allocation[here[giver].name] -= 1
                for other, devices in here[giver].devices.items():
                    taken[other] -= devices
        return allocation


_ALL: list[Policy] = [
    Best("proportional", problem.PROPORTIONAL),
    Best("total", problem.TOTAL),
    Best("busy", problem.BUSY),
    MAX_MIN,
    Best("jct", problem.COMPLETION),
    WithinBudget(Fill()),
    WithinBudget(Trim()),
    problem.EVEN,
    problem.PER_DEVICE,
    WithinBudget(problem.Static()),
    problem.Fifo(),
]
POLICIES: dict[str, Policy] = {each.name: each for each in _ALL}
"""All policies by name, each corrected to stay within the cores of every node."""


_GROUP = "torchloader.policies"
T = TypeVar("T")


def added(what: str, group: str, name: str, own: Mapping[str, T]) -> T:
    """Return what an installed package adds by an entry point of that name, an object."""
    for point in entry_points(group=group, name=name):
        found: T = point.load()
        return found
    names = ", ".join(dict.fromkeys([*own, *entry_points(group=group).names]))
    raise ValueError(f"there is no {what} {name!r}; the {group.rpartition('.')[2]} are {names}")


def policies() -> list[str]:
    """Return the names of all policies, those of installed packages last."""
    return list(dict.fromkeys([*POLICIES, *sorted(entry_points(group=_GROUP).names)]))


def policy(name: str) -> Policy:
    """Return the policy of that name, of this package or of an installed one (`torchloader.policies`)."""
    return POLICIES[name] if name in POLICIES else WithinBudget(added("policy", _GROUP, name, POLICIES))
