"""Chooses the devices of applications that can train on any number of them, so that the sum of costs is smallest.

An application gets 1, 2, 4 ... devices of a node, a whole node, or several whole nodes. So at most one application that
is spread over nodes is on a node, as Pollux requires to avoid interference (OSDI 2021, section 4.2), and devices that
suffice in number also suffice on nodes. The numbers are found exactly, by dynamic programming, where Pollux searches
with a genetic algorithm. Then the applications whose number stays keep their devices, as far as possible.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torchloader.scheduling.application import Action, Application, Cause, Node, Pause, Placement, Requeue, State
from torchloader.scheduling.placement import Devices, devices_by_kind, kind_of
from torchloader.scheduling.scheduler import Running, Scheduler
from torchloader.simulation.result import Result
from torchloader.simulation.simulator import simulate
from torchloader.simulation.workload import Job
from torchloader_papers.goodput import SizedJob, profile_of
from torchloader_papers.sizes import Option, Pollux, Sizing

__all__ = ["Free", "Resized", "Resizing", "next_round", "planned", "resized", "simulated"]

Free = Mapping[str, Sequence[int]]
"""The indexes of devices that may be used, by node."""

_CLOSE_S = 1e-6  # seconds


@dataclass(frozen=True, slots=True)
class Resized:
    """What changes when a round begins.

    Args:
        paused: the names of running applications that stop: for other devices, or for none.
        begun: the applications that start or resume, with their devices.
    """

    paused: Sequence[str]
    begun: Sequence[tuple[Application, dict[str, tuple[int, ...]]]]


def next_round(now: float, sizing: Sizing) -> float:
    """Return when the next round begins."""
    return (math.floor((now + _CLOSE_S) / sizing.seconds) + 1) * sizing.seconds


def resized(
    now: float,
    holding: Sequence[Application],
    waiting: Sequence[Application],
    nodes: Mapping[str, Node],
    sizing: Sizing,
) -> Resized:
    """Return what changes: nothing, unless a round begins now and was not decided yet.

    Applications of unknown goodput keep the number of devices that they were submitted with, and a running one its
    devices. They precede the others, in the order of arrival. Applications that are starting or stopping are left
    alone.

    Args:
        now: seconds, on the clock of the records.
        holding, waiting: the applications that hold devices, and those that are to be started.
        nodes: the cluster.
        sizing: what allocations cost.

    Raises ValueError, with the kinds, if the nodes have devices of several kinds.
    """
    everybody = sorted([*holding, *waiting], key=lambda each: (each.spec.arrival, each.spec.name))
    if next_round(now, sizing) - now < sizing.seconds - 2 * _CLOSE_S or any(_decided(now, each) for each in everybody):
        return Resized([], [])
    kinds = devices_by_kind(nodes)
    if len(kinds) > 1:
        raise ValueError(f"{sizing.name} chooses numbers of devices of one kind, and the nodes have {', '.join(kinds)}")
    devices = Devices(nodes)
    sized = [each for each in everybody if _resizable(each)]
    others = [each for each in everybody if not _resizable(each)]
    for each in others:
        if each.holds:
            devices.take(each, each.placement, each.workers)
    begun = []
    for each in others:
        if each.waits and (placement := devices.find(each)) is not None:
            devices.take(each, placement, each.spec.minimum)
            begun.append((each, placement))
    least = max((each.spec.minimum for each in sized), default=1)
    plan = planned(now, {each.spec.name: each for each in sized}, devices.free(least), sizing)
    paused = []
    for each in sized:
        placement = plan.get(each.spec.name, {})
        if placement == each.placement:
            continue
        if each.holds:
            paused.append(each.spec.name)
        if placement:
            begun.append((_stopped(now, each), placement))
    return Resized(paused, begun)


def _resizable(application: Application) -> bool:
    """Return whether the devices of an application may change now."""
    return profile_of(application.spec) is not None and (application.waits or application.state is State.RUNNING)


def _decided(now: float, application: Application) -> bool:
    """Return whether a change of the application shows that the round was decided already."""
    changed = application.placed if application.holds else application.since
    return application.starts > 0 and changed is not None and changed > now - _CLOSE_S


def _stopped(now: float, application: Application) -> Application:
    """Return an application as it is when it has paused."""
    if not application.holds:
        return application
    return replace(application, state=State.PAUSED, since=now, placement={}, workers=0, away={})


@dataclass(frozen=True, slots=True)
class _Problem:
    """The applications, what their allocations cost, and the devices for them."""

    now: float
    applications: Mapping[str, Application]
    free: Free
    sizing: Sizing

    @property
    def width(self) -> int:
        """The devices of the largest node."""
        return max(map(len, self.free.values()))

    @property
    def total(self) -> int:
        return sum(map(len, self.free.values()))

    def may_keep(self, application: Application) -> bool:
        """Return whether an application holds devices, none of which another one gets."""
        kept = application.placement.items()
        return application.holds and all(set(devices) <= set(self.free.get(node, ())) for node, devices in kept)

    def option(self, devices: int, moves: bool) -> Option:
        return Option(devices, devices > self.width, moves)

    def cost(self, name: str, devices: int, moves: bool) -> float:
        """Return the cost of a number of devices."""
        if devices == 0:
            return self.sizing.unserved
        application = self.applications[name]
        profile = profile_of(application.spec)
        assert profile is not None
        share = self.option(max(1, self.total // len(self.applications)), moves=False)
        option = self.option(devices, moves)
        return self.sizing.cost(self.now, application, profile, option, share)

    def sizes(self, name: str) -> list[int]:
        """Return the numbers of devices that an application may get, none included."""
        application = self.applications[name]
        profile = profile_of(application.spec)
        assert profile is not None
        limit = min(self.total, profile.most, self.sizing.limit(application))
        within = [2**power for power in range(self.width.bit_length()) if 2**power < self.width]
        whole = range(self.width, limit + 1, self.width)
        return [0, *(size for size in within if size <= limit), *whole]

    def value(self, placements: Mapping[str, Placement]) -> float:
        """Return the sum of the costs of placements."""
        return math.fsum(
            self.cost(name, _count(placements.get(name, {})), placements.get(name, {}) != each.placement and each.holds)
            for name, each in self.applications.items()
        )


def planned(
    now: float, applications: Mapping[str, Application], free: Free, sizing: Sizing
) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return the devices of each application that is to hold some.

    Either all applications are considered anew, or those that hold devices keep them and only the others are: whichever
    costs less in sum.

    Args:
        now: seconds, on the clock of the records.
        applications: those to share the devices, all with a profile.
        free: the devices to share, those that the applications hold included.
        sizing: what allocations cost.
    """
    problem = _Problem(now, applications, free, sizing)
    if not applications or problem.total == 0:
        return {}
    everything = {name: problem.sizes(name) for name in applications}
    anew = _packed(problem, _cheapest(problem, everything), {})
    held = {name: each.placement for name, each in applications.items() if problem.may_keep(each)}
    pinned = {name: [_count(held[name])] if name in held else sizes for name, sizes in everything.items()}
    kept = _packed(problem, _cheapest(problem, pinned), held)
    return anew if problem.value(anew) < problem.value(kept) - 1e-9 else kept


def _count(placement: Placement) -> int:
    return sum(map(len, placement.values()))


def _cheapest(problem: _Problem, choices: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Return the numbers of devices with the smallest sum of costs, of the choices of each application."""
    total = problem.total
    least = [0.0] * (total + 1)  # by the number of devices that may be used
    taken: list[list[int]] = []
    for name, sizes in choices.items():
        application = problem.applications[name]
        had = _count(application.placement)
        costs = [(size, problem.cost(name, size, application.holds and size != had)) for size in sizes]
        before, least, chosen = least, [math.inf] * (total + 1), [0] * (total + 1)
        for size, cost in costs:
            for devices in range(size, total + 1):
                if (other := before[devices - size] + cost) < least[devices]:
                    least[devices], chosen[devices] = other, size
        taken.append(chosen)
    left, found = total, dict.fromkeys(choices, 0)
    for name, chosen in reversed(list(zip(choices, taken, strict=True))):
        found[name] = chosen[left]
        left -= found[name]
    return found


def _packed(
    problem: _Problem, sizes: Mapping[str, int], pinned: Mapping[str, Placement]
) -> dict[str, dict[str, tuple[int, ...]]]:
    """Return devices for these numbers. The pinned applications keep theirs, and others with an unchanged number do so
    as far as there is enough room on a node for the larger ones."""
    rooms = {node: set(devices) for node, devices in problem.free.items()}
    found: dict[str, dict[str, tuple[int, ...]]] = {}

    def put(name: str, placement: Placement) -> None:
        found[name] = dict(placement)
        for node, devices in placement.items():
            rooms[node].difference_update(devices)

    def clear(name: str) -> None:
        for node, devices in found.pop(name).items():
            rooms[node].update(devices)

    for name, each in problem.applications.items():
        if name in pinned or (problem.may_keep(each) and sizes[name] == _count(each.placement)):
            put(name, each.placement)
    waiting = [name for name in sizes if sizes[name] and name not in found]
    while waiting:
        waiting.sort(key=lambda name: -sizes[name])  # stable: by arrival among equals
        name = waiting.pop(0)
        for size in sorted((size for size in problem.sizes(name) if 0 < size <= sizes[name]), reverse=True):
            yielding = [other for other in found if other not in pinned and _count(found[other]) < size]
            nodes = _nodes(rooms, problem.width, size, [found[other] for other in yielding])
            if nodes is not None:
                share = min(size, problem.width)
                for other in yielding:
                    if any(node in nodes and len(rooms[node]) < share for node in found[other]):
                        clear(other)
                        waiting.append(other)
                put(name, {node: tuple(sorted(rooms[node])[:share]) for node in nodes})
                break
    return found


def _nodes(rooms: Mapping[str, set[int]], width: int, size: int, yielding: Sequence[Placement]) -> list[str] | None:
    """Return the nodes on which there is room for a number of devices, if smaller applications yield; those on which
    the fewest devices have to be taken from them, and then those with the least room. None if there are too few."""
    share, count = min(size, width), max(1, size // width)
    could = {node: len(room) for node, room in rooms.items()}
    for placement in yielding:
        for node, devices in placement.items():
            could[node] += len(devices)
    able = [node for node in rooms if could[node] >= share]
    able.sort(key=lambda node: (max(0, share - len(rooms[node])), len(rooms[node]), node))
    return able[:count] if len(able) >= count else None


@dataclass(frozen=True)
class Resizing(Scheduler):
    """A scheduler that changes the numbers of devices of jobs while they run. Its order is not used.

    A change pauses and resumes a job in one list of actions, which only the simulator carries out.

    Args:
        sizes: what allocations cost.
    """

    sizes: Sizing = field(default_factory=Pollux)

    @property
    def name(self) -> str:
        """The names of the policy and of the sizing."""
        return f"{self.policy.name}+{self.sizes.name}"

    def decide(
        self, now: float, applications: Mapping[str, Application], nodes: Mapping[str, Node], cause: Cause
    ) -> list[Action]:
        """Return the actions of a round, or between rounds those that share the cores."""
        lost, holding, waiting = self.sorted_out(now, applications, nodes)
        changes = resized(now, holding, waiting, nodes, self.sizes)
        kept = [each for each in holding if each.spec.name not in changes.paused]
        running, without, _ = self.staying(now, kept, nodes, cause)
        started = {
            each.spec.name: Running(each, placement, kind_of(placement, nodes), True)
            for each, placement in changes.begun
        }
        actions: list[Action] = [Requeue(name, cause.value) for name in lost]
        actions += [Pause(name, "it gets other devices") for name in changes.paused]
        actions += [Pause(name, cause.value) for name in without]
        return actions + self.allocate(running, started, nodes, cause)

    def next_time(self, now: float, applications: Mapping[str, Application], kinds: int = 1) -> float | None:
        """Return when the next round begins."""
        return next_round(now, self.sizes) if applications else None


def simulated(jobs: Sequence[Job], nodes: Mapping[str, Node], scheduler: Scheduler, **more: Any) -> Result:
    """Simulate jobs as `torchloader.simulation.simulator.simulate` does, with the batches that the sizing chooses."""
    adapts = isinstance(scheduler, Resizing) and scheduler.sizes.adapts
    known = [replace(job, adapts=adapts) if isinstance(job, SizedJob) else job for job in jobs]
    return simulate(known, nodes, scheduler, **more)
