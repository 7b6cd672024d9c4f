"""Finds devices of the kinds that suit waiting applications, and divides the speed of devices that several share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import Application, Away, Node, Placement, Spec, State, cores_of

# Groups of kinds, the preferred ones first; those of one group are equally good.
Kinds = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """A place in the order of service: the application gets devices of one of these kinds, if it has none then."""

    application: Application
    kinds: Kinds


def devices_by_kind(nodes: Mapping[str, Node]) -> dict[str, int]:
    """Return the number of devices of each kind, in the order of the kinds' names."""
    found: dict[str, int] = {}
    for node in nodes.values():
        found[node.kind] = found.get(node.kind, 0) + len(node.devices)
    return dict(sorted(found.items()))


def kind_of(placement: Placement, nodes: Mapping[str, Node]) -> str:
    """Return the kind of the devices of a placement, which are all of one kind; "" if its nodes are not there."""
    return next((nodes[name].kind for name in placement if name in nodes), "")


def any_kind(spec: Spec, kinds: Iterable[str]) -> Kinds:
    """Return the kinds on which an application can run, none of which is preferred."""
    able = tuple(kind for kind in kinds if spec.runs_on(kind))
    return (able,) if able else ()


def fastest_first(spec: Spec, kinds: Iterable[str]) -> Kinds:
    """Return the kinds on which an application can run, those on which it is fastest first."""
    groups = any_kind(spec, kinds)
    if not groups or not spec.speeds:
        return groups
    speeds = sorted({spec.speed(kind) for kind in groups[0]}, reverse=True)
    return tuple(tuple(kind for kind in groups[0] if spec.speed(kind) == speed) for speed in speeds)


def turns(applications: Iterable[Application], nodes: Mapping[str, Node]) -> list[Turn]:
    """Return one turn for each application, in this order, for devices of the fastest kind that is free for it."""
    kinds = devices_by_kind(nodes)
    return [Turn(each, fastest_first(each.spec, kinds)) for each in applications]


class Devices:
    """The free devices and cores of each node."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes = nodes
        self._free = {name: sorted(node.devices) for name, node in nodes.items()}
        # Devices that were chosen by find() for an application, which must not share them.
        self._found: set[tuple[str, int]] = set()
        self._users: Counter[tuple[str, int]] = Counter()
        self._of_kind: dict[str, list[str]] = {}
        for name, node in nodes.items():
            self._of_kind.setdefault(node.kind, []).append(name)
        self._open = set(self._of_kind)
        self.cores = {name: node.cores for name, node in nodes.items()}

    def take(self, application: Application, placement: Placement, workers: int, away: Away | None = None) -> None:
        """Take these devices, and cores for `workers` per device, some of which run on other nodes."""
        for name, cores in cores_of(placement, workers, away or {}).items():
            if name in self.cores:
                self.cores[name] -= cores
        for name, devices in placement.items():
            self._free[name] = [device for device in self._free[name] if device not in devices]
            self._users.update((name, device) for device in devices)
            if isinstance(application.spec.devices, int):
                self._found.update((name, device) for device in devices)

    def give(self, application: Application, placement: Placement, workers: int) -> None:
        """Give devices and cores back that were taken with the same arguments."""
        for name, cores in cores_of(placement, workers, {}).items():
            self.cores[name] += cores
        for name, devices in placement.items():
            self._users.subtract((name, device) for device in devices)
            unused = [device for device in devices if not self._users[name, device]]
            self._free[name] = sorted({*self._free[name], *unused})
            if isinstance(application.spec.devices, int):
                self._found.difference_update((name, device) for device in devices)

    def close(self, kinds: Kinds) -> None:
        """Keep the free devices of these kinds for an application that waits: find() finds none of them any more."""
        self._open.difference_update(*kinds)

    @property
    def closed(self) -> bool:
        return not self._open

    def fits(self, placement: Placement, workers: int, away: Away | None = None) -> bool:
        """Return whether there are cores for `workers` per device, some of which run on other nodes."""
        needed = cores_of(placement, workers, away or {})
        return all(self.cores.get(name, 0) >= cores for name, cores in needed.items())

    def free(self, workers: int) -> dict[str, list[int]]:
        """Return the free devices of each node, as many as there are cores for `workers` for each."""
        return {name: devices[: max(0, self.cores[name] // workers)] for name, devices in self._free.items()}

    def find(self, application: Application, kinds: Kinds | None = None) -> dict[str, tuple[int, ...]] | None:
        """Return devices on which the application can run with its minimum of workers; None if there are none now."""
        spec = application.spec
        groups = any_kind(spec, self._of_kind) if kinds is None else kinds
        if not isinstance(spec.devices, int):
            named = {name: tuple(devices) for name, devices in spec.devices.items() if devices}
            for name, devices in named.items():
                if name not in self._nodes or not set(devices) <= set(self._nodes[name].devices):
                    return None
                if any((name, device) in self._found for device in devices):
                    return None
            there = {self._nodes[name].kind for name in named}
            able = self._open.intersection(kind for group in groups for kind in group)
            if not there <= able or (spec.speeds and len(there) > 1):
                return None
            return named if self.fits(named, spec.minimum) else None
        for group in groups:
            placement = self._find(spec.devices, spec.minimum, [kind for kind in group if kind in self._open])
            if placement is not None:
                return placement
        return None

    def _find(self, count: int, workers: int, kinds: list[str]) -> dict[str, tuple[int, ...]] | None:
        rooms = {
            kind: {name: min(len(self._free[name]), self.cores[name] // workers) for name in self._of_kind[kind]}
            for kind in kinds
        }
        # On one node if possible, on the one with the fewest free devices, so that others stay whole.
        whole = [name for room in rooms.values() for name in room if room[name] >= count]
        if whole:
            name = min(whole, key=lambda name: (len(self._free[name]), -self.cores[name], name))
            return {name: tuple(self._free[name][:count])}
        room = max(rooms.values(), key=lambda room: sum(room.values()), default={})
        placement = {}
        for name in sorted(room, key=lambda name: (-room[name], name)):
            taken = min(count, room[name])
            if taken > 0:
                placement[name] = tuple(self._free[name][:taken])
                count -= taken
        return placement if count == 0 else None


def shared(curves: Mapping[str, tuple[Curve, Placement]]) -> dict[str, Curve]:
    """Return the curves of applications that run at the same time, by name: a device computes for its users in turn."""
    held = {
        name: [(n, d) for n, devices in placement.items() for d in devices] for name, (_, placement) in curves.items()
    }
    users = Counter(device for devices in held.values() for device in devices)
    return {name: curve.scaled(1 / max(users[each] for each in held[name])) for name, (curve, _) in curves.items()}


def yielding(
    now: float,
    ranked: Sequence[Turn],
    nodes: Mapping[str, Node],
    able: Collection[str],
    least: Callable[[Application], int],
    patience: float,
) -> list[str]:
    """Return the names of running applications that have to yield: as few, and as low in the order, as suffice. An
    application never yields to a later one, nor if free devices suffice, nor if the freed ones would not. Those that
    are starting keep their devices; the devices of those that are pausing count as free. An application that runs on
    one kind and has an earlier turn for another yields too if it finds devices of that one."""
    work = _Work(ranked, nodes, able, least)
    for place, turn in enumerate(ranked):
        each = turn.application
        if not work.wants(each, place) or work.place(each, turn.kinds, place):
            continue
        if each.waits and now - each.since >= patience:
            work.devices.close(turn.kinds)
            if work.devices.closed:
                break
    return work.yields


class _Work:
    """The devices as they will be, while the turns are considered one after another."""

    def __init__(
        self,
        ranked: Sequence[Turn],
        nodes: Mapping[str, Node],
        able: Collection[str],
        least: Callable[[Application], int],
    ) -> None:
        self.devices = Devices(nodes)
        self.yields: list[str] = []
        self._able, self._least = able, least
        self._settled: set[str] = set()  # those that keep or get devices, or yield them
        self._places = _places(ranked)
        named = {turn.application.spec.name: turn.application for turn in ranked}
        holding = [named[name] for name in sorted(self._places, key=self._places.__getitem__)]
        for each in holding:
            self.devices.take(each, each.placement, least(each))
        self._lower = [each for each in holding if each.spec.name in able]  # may have to yield, in the order of service

    def wants(self, each: Application, place: int) -> bool:
        """Return whether an application needs other devices than it has at this place of the order."""
        name = each.spec.name
        if name in self._settled:
            return False
        if name in self._places and (name not in self._able or place >= self._places[name]):
            self._settled.add(name)
            return False
        return each.waits or name in self._places

    def place(self, each: Application, kinds: Kinds, place: int) -> bool:
        """Take devices of these kinds for an application, if necessary from later ones. Returns whether there are
        any."""
        placement = self.devices.find(each, kinds)
        if placement is None and self._free(each, kinds, place):
            placement = self.devices.find(each, kinds)
        if placement is None:
            return False
        if each.spec.name in self._places:
            self._give(each)
            self._yields(each)
        self.devices.take(each, placement, each.spec.minimum)
        self._settled.add(each.spec.name)
        return True

    def _free(self, each: Application, kinds: Kinds, place: int) -> bool:
        """Let as few applications yield as suffice for `each`, the last ones first; return whether that is possible."""
        wanted = {kind for group in kinds for kind in group}
        lower = [other for other in self._lower if self._places[other.spec.name] > place and other.kind in wanted]
        freed: list[Application] = []
        found = False
        while lower and not found:
            freed.append(lower.pop())
            self._give(freed[-1])
            found = self.devices.find(each, kinds) is not None
        if not found:
            for other in freed:
                self._keep(other)
            return False
        # Without the last one that was freed it would not suffice; the others may stay if it suffices with them.
        self._yields(freed.pop())
        for other in reversed(freed):
            self._keep(other)
            if self.devices.find(each, kinds) is None:
                self._give(other)
                self._yields(other)
        return True

    def _keep(self, each: Application) -> None:
        self.devices.take(each, each.placement, self._least(each))

    def _give(self, each: Application) -> None:
        self.devices.give(each, each.placement, self._least(each))

    def _yields(self, each: Application) -> None:
        self.yields.append(each.spec.name)
        self._settled.add(each.spec.name)
        self._lower.remove(each)


def _places(ranked: Sequence[Turn]) -> dict[str, int]:
    """Return the place of each application that keeps its devices unless others need them: of its first turn for the
    kind that it holds, or of its last."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for place, turn in enumerate(ranked):
        each = turn.application
        if each.holds and each.state is not State.PAUSING:
            last[each.spec.name] = place
            if any(each.kind in group for group in turn.kinds):
                first.setdefault(each.spec.name, place)
    return last | first
