"""Decides what to do with applications when an event happens, and which workers they lend. Equal inputs give equal
results."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torchloader.allocation.catalogue import Best, maximizes
from torchloader.allocation.problem import PROPORTIONAL, Allocation, Demand, Fifo, Objective, Policy, Table, deal, used
from torchloader.prediction.curve import Curve
from torchloader.scheduling import application as actions
from torchloader.scheduling.application import Application, Away, Cause, Mode, Node, Placement, State, cores_of, spread
from torchloader.scheduling.orders import ARRIVAL, Order
from torchloader.scheduling.placement import Devices, Turn, kind_of, shared, yielding


@dataclass(frozen=True, slots=True)
class Worth:
    """The value of allocations: what jobs train until the next event, minus the time lost by changing them."""

    objective: Objective  # the objective of the policy
    demands: Sequence[Demand]  # the jobs
    before: Mapping[str, int]  # workers per device of the running jobs
    costs: Mapping[str, float]  # seconds of training that a change costs each
    seconds: float  # the time until the next event

    def _job(self, demand: Demand, workers: int) -> float:
        moved = demand.name in self.before and workers != self.before[demand.name]
        part = max(1e-9, 1 - self.costs[demand.name] / self.seconds) if moved else 1.0
        return self.objective.value(demand, demand.curve.throughput(workers) * part)

    def of(self, allocation: Mapping[str, int]) -> float:
        """Return the sum of the values over all jobs that get workers."""
        return sum(self._job(each, allocation[each.name]) for each in self.demands if allocation[each.name] > 0)

    def without_idle_moves(self, allocation: Allocation, cores: Mapping[str, int]) -> Allocation:
        """Return the allocation without the changes that are not worth their cost, if there are cores to undo them."""
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


_MANY = 10**6  # workers, for a job for which no number is enough


def with_headroom(
    demands: Sequence[Demand], allocation: Allocation, cores: Mapping[str, int], able: Collection[str], part: float
) -> Allocation:
    """Return the allocation with more workers, from unused cores, for the jobs that are nearest to waiting: curves are
    inexact, and a worker too many costs nothing, while one too few leaves a device waiting."""
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


def remaining(nodes: Mapping[str, Node], least: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the cores for loading of each node, without those lent to other programs."""
    needed = dict.fromkeys(nodes, 0)
    for each in least:
        for node, cores in each.items():
            if node in needed:
                needed[node] += cores
    return {name: max(node.cores - node.lent, min(node.cores, needed[name])) for name, node in nodes.items()}


_CHEAP = 0.001  # fraction of the time until the next event that a change only for headroom may cost
_ANY_NODE = "any node"
_REALLOCATES = {
    Mode.NEVER: frozenset[Cause](),
    Mode.ARRIVALS: frozenset({Cause.ARRIVAL, Cause.LOST}),
    Mode.ARRIVALS_AND_DEPARTURES: frozenset(Cause),
}


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Decides which applications start, and with how many workers each continues. Running applications keep their
    devices, and at least their minimum of workers. Waiting ones start, in the order of arrival, when their devices and
    a minimum of workers per device are available; one that has to wait does not block those after it. Workers of
    running applications are changed if the gain until the next expected event exceeds the cost. With another order than
    that of arrival, running applications may yield their devices: they are paused, and nothing else is done until they
    have stopped. The applications that they yield to start when the scheduler is called after that."""

    policy: Policy  # how cores are shared
    mode: Mode = Mode.ARRIVALS_AND_DEPARTURES  # when workers of running applications are reallocated
    order: Order = ARRIVAL  # which applications get devices first, and whether others yield to them
    cost: float = 0.0  # seconds of training that a change of workers costs, where that was not measured
    interval: float = 0.0  # seconds for which an application is not changed again
    horizon: float = 600.0  # the longest time, in seconds, until an event that changes the allocation anyway
    weigh: bool = True  # whether a change has to be worth its cost. The published scheduler made every change
    headroom: float = 1.0  # workers from unused cores, as a fraction of what is estimated, inexactly, to be enough
    # Seconds for which a waiting application lets those after it start first. Without a limit, applications with many
    # devices could wait forever; 0 keeps the order of arrival.
    patience: float = 1800.0
    # Whether workers may run on nodes without the application's devices. It still starts only if its own nodes have
    # cores for its minimum.
    anywhere: bool = False

    @property
    def name(self) -> str:
        """The name of the policy, and of the order if it is not that of arrival."""
        return self.policy.name + ("" if self.order == ARRIVAL else f"+{self.order.name}")

    def decide(
        self, now: float, applications: Mapping[str, Application], nodes: Mapping[str, Node], cause: Cause
    ) -> list[actions.Action]:
        """Return the actions to take, in this order: those that free cores precede those that take them."""
        lost, holding, waiting = self.sorted_out(now, applications, nodes)
        found: list[actions.Action] = [actions.Requeue(name, cause.value) for name in lost]
        starved = {each.spec.name for each in self.order.starved(now, waiting)}
        found += [actions.Promote(name, "it waited for too long") for name in sorted(starved)]
        waiting = [replace(each, executed=0.0) if each.spec.name in starved else each for each in waiting]
        ranked = self.order.ranked(now, [*holding, *waiting], nodes)
        if yields := self._yielding(now, ranked, nodes):
            return found + [actions.Pause(name, "it yields its devices") for name in yields]
        running, paused, devices = self.staying(now, holding, nodes, cause)
        leaving = self.order.preempts and any(each.state is State.PAUSING for each in holding)
        started = self._start(now, ranked, nodes, devices, leaving)
        found += [actions.Pause(name, cause.value) for name in paused]
        return found + self.allocate(running, started, nodes, cause)

    @staticmethod
    def sorted_out(
        now: float, applications: Mapping[str, Application], nodes: Mapping[str, Node]
    ) -> tuple[list[str], list[Application], list[Application]]:
        """Return the names of those on lost nodes, those that hold devices, and those that wait, the lost included."""
        lost = sorted(
            name for name, each in applications.items() if each.holds and any(n not in nodes for n in each.placement)
        )
        holding = [_there(each, nodes) for name, each in applications.items() if each.holds and name not in lost]
        waiting = [_requeued(now, each) for name, each in applications.items() if each.waits or name in lost]
        return lost, holding, waiting

    def next_time(self, now: float, applications: Mapping[str, Application], kinds: int = 1) -> float | None:
        """Return when to call again with `Cause.DUE`: a changed application has rested, or the order changes; None for
        never."""
        changes = self.order.next_time(now, list(applications.values()), kinds)
        ends = [
            each.moved + self.interval
            for each in applications.values()
            if each.state is State.RUNNING and each.moved is not None and each.moved + self.interval > now
        ]
        ends = [] if self.mode is Mode.NEVER else ends
        return min(ends if changes is None else [*ends, changes], default=None)

    def _movable(self, now: float, application: Application, cause: Cause) -> bool:
        rested = application.moved is None or now - application.moved >= self.interval
        return application.state is State.RUNNING and rested and cause in _REALLOCATES[self.mode]

    def staying(
        self, now: float, holding: list[Application], nodes: Mapping[str, Node], cause: Cause
    ) -> tuple[dict[str, Running], list[str], Devices]:
        """Return the applications that continue, the names of those without cores, and the remaining devices."""
        running, paused, devices = {}, [], Devices(nodes)
        for each in sorted(holding, key=lambda each: (each.state is State.RUNNING, each.spec.arrival, each.spec.name)):
            movable = self._movable(now, each, cause)
            least, away = (each.spec.minimum, {}) if movable else (each.workers, each.away)
            if each.state is State.RUNNING and not devices.fits(each.placement, least, away):
                if not devices.fits(each.placement, each.spec.minimum):
                    paused.append(each.spec.name)
                    continue
                movable, least, away = True, each.spec.minimum, {}
            devices.take(each, each.placement, least, away)
            running[each.spec.name] = Running(each, each.placement, each.kind, movable)
        return running, paused, devices

    def _yielding(self, now: float, ranked: list[Turn], nodes: Mapping[str, Node]) -> list[str]:
        """Return those that yield their devices. Their end is a departure, so cores are counted for that cause."""

        def least(each: Application) -> int:
            return each.spec.minimum if self._movable(now, each, Cause.DEPARTURE) else each.workers

        if not self.order.preempts:
            return []
        running = (turn.application for turn in ranked if turn.application.state is State.RUNNING)
        able = {each.spec.name for each in running if self.order.yields(now, each)}
        return yielding(now, ranked, nodes, able, least, self.patience)

    def _start(
        self, now: float, ranked: list[Turn], nodes: Mapping[str, Node], devices: Devices, leaving: bool
    ) -> dict[str, Running]:
        started: dict[str, Running] = {}
        patience = 0.0 if leaving or isinstance(self.policy, Fifo) else self.patience
        for turn in ranked:
            each = turn.application
            if not each.waits or each.spec.name in started:
                continue
            placement = devices.find(each, turn.kinds)
            if placement is not None:
                devices.take(each, placement, each.spec.minimum)
                started[each.spec.name] = Running(each, placement, kind_of(placement, nodes), True)
            elif now - each.since >= patience:
                devices.close(turn.kinds)
                if devices.closed:
                    break
        return started

    def allocate(
        self, running: dict[str, Running], started: dict[str, Running], nodes: Mapping[str, Node], cause: Cause
    ) -> list[actions.Action]:
        """Return the actions that share the cores among the applications that run and those that are started."""
        everybody = running | started
        if not everybody:
            return []
        curves = shared({name: (each.curve, each.placement) for name, each in everybody.items()})
        demands = [each.demand(place, curves[name]) for place, (name, each) in enumerate(everybody.items())]
        cores = on_nodes = remaining(nodes, (each.least for each in everybody.values()))
        if self.anywhere:
            demands = [replace(demand, devices={_ANY_NODE: demand.size}) for demand in demands]
            cores = {_ANY_NODE: sum(on_nodes.values())}
        before = {name: each.application.workers for name, each in running.items()}
        target = self._target(demands, cores, everybody, before)
        if self.weigh and maximizes(self.policy):
            target = with_headroom(demands, target, cores, self._able(demands, everybody, before), self.headroom)
        away = self._spread(everybody, target, on_nodes)
        resized = [
            actions.Resize(name, before[name], target[name], cause.value, away[name])
            for name, each in running.items()
            if each.movable and target[name] and (target[name], away[name]) != (before[name], each.application.away)
        ]
        stopped = [actions.Pause(name, cause.value) for name in running if target[name] == 0 and running[name].movable]
        resized.sort(key=lambda each: (each.workers > each.before, each.name))
        begun = [each.begin(target[name], away[name], cause) for name, each in started.items() if target[name]]
        return [*stopped, *resized, *begun]

    def _spread(
        self, everybody: Mapping[str, Running], target: Allocation, cores: Mapping[str, int]
    ) -> Mapping[str, Away]:
        """Return which workers run on other nodes, by application."""
        if not self.anywhere:
            return {name: {} for name in everybody}
        needs = [
            need
            for name, each in everybody.items()
            for need in each.application.needs(each.placement, target[name], fixed=not each.movable)
        ]
        return spread(needs, cores)

    def _target(
        self, demands: list[Demand], cores: Mapping[str, int], everybody: Mapping[str, Running], before: Allocation
    ) -> Allocation:
        pinned = [replace(demand, minimum=before[demand.name], maximum=before[demand.name])
                  if demand.name in before else demand for demand in demands]  # fmt: skip
        free = [pin if not everybody[pin.name].movable else demand for pin, demand in zip(pinned, demands, strict=True)]
        wanted = self.policy(free, cores)
        if not self.weigh or not before or not any(everybody[name].movable for name in before):
            return wanted
        costs = {name: self._cost(each.application) for name, each in everybody.items()}
        worth = Worth(self._objective, demands, before, costs, self._until(demands, before))
        wanted = worth.without_idle_moves(wanted, cores)
        if any(number > cores.get(node, 0) for node, number in used(demands, before).items()):
            return wanted  # other programs use some of these cores now
        kept = self.policy(pinned, cores)
        if any(kept[name] == 0 < wanted[name] for name in everybody):
            return wanted  # an application can only start if others change
        kept |= before
        return wanted if worth.of(wanted) > worth.of(kept) + 1e-9 else kept

    def _cost(self, application: Application) -> float:
        return self.cost if application.cost is None else application.cost

    def _able(self, demands: list[Demand], everybody: Mapping[str, Running], before: Allocation) -> set[str]:
        """Return the names of applications that can get more workers at negligible cost."""
        cheap = _CHEAP * self._until(demands, before)
        return {
            name
            for name, each in everybody.items()
            if each.movable and (name not in before or self._cost(each.application) <= cheap)
        }

    @property
    def _objective(self) -> Objective:
        return self.policy.objective if isinstance(self.policy, Best) else PROPORTIONAL

    def _until(self, demands: list[Demand], before: Allocation) -> float:
        """Return the seconds until the first running application is expected to end, at most the horizon."""
        ends = [
            demand.remaining / (demand.size * demand.curve.throughput(before[demand.name]))
            for demand in demands
            if before.get(demand.name, 0) > 0 and demand.remaining is not None
        ]
        return max(1.0, min([self.horizon, *ends]))


def _there(application: Application, nodes: Mapping[str, Node]) -> Application:
    """Return an application with the kind of its devices, which older logs lack."""
    kind = kind_of(application.placement, nodes)
    return application if kind == application.kind else replace(application, kind=kind)


def _requeued(now: float, application: Application) -> Application:
    """Return a waiting application unchanged; one whose node is lost, as it is when it waits again."""
    if application.waits:
        return application
    executed = application.service(now) / application.spec.size
    return replace(application, state=State.QUEUED, since=now, workers=0, placement={}, executed=executed)


@dataclass(frozen=True, slots=True)
class Running:
    """An application that runs or is about to."""

    application: Application
    placement: Placement
    kind: str
    movable: bool

    @property
    def curve(self) -> Curve:
        """Its curve on the devices that it has."""
        return self.application.expected(self.kind)

    def demand(self, place: int, curve: Curve) -> Demand:
        """Return its demand. Running applications come first, so that starting ones do not take their minimum."""
        spec = self.application.spec
        return Demand(
            spec.name,
            {node: len(devices) for node, devices in self.placement.items()},
            curve,
            spec.weight,
            spec.minimum,
            spec.maximum,
            spec.requested,
            float(place),
            self.application.left,
        )

    @property
    def least(self) -> dict[str, int]:
        """The cores that it must have, by node."""
        if self.movable:
            return cores_of(self.placement, self.application.spec.minimum, {})
        return cores_of(self.placement, self.application.workers, self.application.away)

    def begin(self, workers: int, away: Away, cause: Cause) -> actions.Action:
        """Return the action that starts or resumes it."""
        state = State.RESUMING if self.application.state is State.PAUSED else State.STARTING
        return actions.Launch(
            self.application.spec.name, dict(self.placement), workers, cause.value, away, self.kind, state
        )
