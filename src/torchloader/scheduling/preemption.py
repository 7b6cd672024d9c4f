"""Decides which applications yield their devices to waiting ones that precede them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence

from torchloader.scheduling.actions import Node
from torchloader.scheduling.application import Application, Placement
from torchloader.scheduling.placement import Devices
from torchloader.scheduling.states import State

__all__ = ["yielding"]

_Taken = tuple[Application, Placement, int]  # an application, its devices, and the cores for each of them


def yielding(
    now: float,
    ranked: Sequence[Application],
    nodes: Mapping[str, Node],
    able: Collection[str],
    least: Callable[[Application], int],
    patience: float,
) -> list[str]:
    """Return the names of running applications that have to yield: as few, and as low in the order, as suffice.

    An application never yields to a later one, nor if free devices suffice, nor if the freed ones would not. Those that
    are starting keep their devices; the devices of those that are pausing count as free.

    Args:
        now: seconds, on the clock of the records.
        ranked: those that hold devices or wait, the first to be served first.
        nodes: the cluster.
        able: names of running applications that may have to yield.
        least: returns the cores per device that a running application must keep if it keeps its devices.
        patience: seconds after which a waiting application that finds no devices blocks those after it.
    """
    taken: list[_Taken] = [
        (each, each.placement, least(each)) for each in ranked if each.holds and each.state is not State.PAUSING
    ]
    found: list[str] = []
    devices = _devices(nodes, taken)
    for place, each in enumerate(ranked):
        if not each.waits:
            continue
        placement = devices.find(each)
        if placement is None:
            after = {other.spec.name for other in ranked[place + 1 :]}.intersection(able)
            kept, lower = _parted(taken, after)
            freed = _freed(each, kept, lower, nodes)
            if freed is not None:
                placement, taken, names = freed
                found += names
                devices = _devices(nodes, taken)
        if placement is not None:
            devices.take(each, placement, each.spec.minimum)
            taken.append((each, placement, each.spec.minimum))
        elif now - each.since >= patience:
            break
    return found


def _devices(nodes: Mapping[str, Node], taken: Sequence[_Taken]) -> Devices:
    devices = Devices(nodes)
    for each in taken:
        devices.take(*each)
    return devices


def _parted(taken: Sequence[_Taken], names: set[str]) -> tuple[list[_Taken], list[_Taken]]:
    """Split into applications that are not in `names`, and those that are, in the order of service."""
    return (
        [each for each in taken if each[0].spec.name not in names],
        [each for each in taken if each[0].spec.name in names],
    )


def _freed(
    application: Application, kept: list[_Taken], lower: list[_Taken], nodes: Mapping[str, Node]
) -> tuple[dict[str, tuple[int, ...]], list[_Taken], list[str]] | None:
    """Return where an application can run if some of `lower` yield, the new holdings, and the yielding names; None if
    it cannot."""

    def find(staying: Sequence[_Taken]) -> dict[str, tuple[int, ...]] | None:
        return _devices(nodes, [*kept, *staying]).find(application)

    if not lower or find([]) is None:
        return None
    staying: list[_Taken] = []
    yields: list[str] = []
    while lower:
        # The longest prefix of the order with which it finds devices stays; the application after it has to yield.
        longest = bisect_left(range(1, len(lower) + 1), True, key=lambda stay: find([*staying, *lower[:stay]]) is None)
        yields += [other.spec.name for other, _, _ in lower[longest : longest + 1]]
        staying, lower = [*staying, *lower[:longest]], lower[longest + 1 :]
    placement = find(staying)
    assert placement is not None
    return placement, [*kept, *staying], yields
