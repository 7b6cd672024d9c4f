"""Decides which applications yield their devices to waiting ones that precede them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from torchloader.scheduling.actions import Node
from torchloader.scheduling.application import Application, State
from torchloader.scheduling.placement import Devices, Kinds, Turn


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
        if not work.wants(each, place):
            continue
        if work.place(each, turn.kinds, place):
            continue
        if each.waits and now - each.since >= patience:
            work.devices.close(kind for group in turn.kinds for kind in group)
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
        """Take devices of these kinds for an application, from those later in the order if necessary; return whether
        that was possible."""
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
    """Return the place of each application that keeps its devices unless others need them: that of its first turn for
    the kind that it holds, or else of its last turn."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for place, turn in enumerate(ranked):
        each = turn.application
        if each.holds and each.state is not State.PAUSING:
            last[each.spec.name] = place
            if any(each.kind in group for group in turn.kinds):
                first.setdefault(each.spec.name, place)
    return last | first
