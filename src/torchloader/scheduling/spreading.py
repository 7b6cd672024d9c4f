"""Chooses the nodes of loading workers, which may differ from those of the devices that they load for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# Of the workers for an application's devices on a node: how many are on which other nodes.
Away = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Need:
    """The workers for the devices that an application has on one node.

    Args:
        name: the name of the application.
        node: the node of the devices.
        workers: the number of workers for all devices there.
        least: how many of them must run on that node.
        before: how many now run on which other nodes.
        fixed: whether they stay where they are.
    """

    name: str
    node: str
    workers: int
    least: int
    before: Mapping[str, int] = field(default_factory=dict)
    fixed: bool = False


def spread(needs: Sequence[Need], cores: Mapping[str, int]) -> dict[str, dict[str, dict[str, int]]]:
    """Return `Away` for each application. Equal arguments give equal results. Workers run on the node of their devices
    while it has cores, those of earlier needs first. The others stay on their present nodes if possible, then take the
    nodes with the most free cores. If no node has any, they run on their devices' node."""
    free = dict(cores)
    rest: dict[int, int] = {}
    away: dict[str, dict[str, dict[str, int]]] = {need.name: {} for need in needs}
    for need in needs:
        there = sum(need.before.values()) if need.fixed else 0
        free[need.node] = free.get(need.node, 0) - (need.workers - there if need.fixed else need.least)
        for node, workers in need.before.items() if need.fixed else ():
            free[node] = free.get(node, 0) - workers
        if there:
            away[need.name][need.node] = dict(need.before)
    for place, need in enumerate(needs):
        if not need.fixed:
            more = need.workers - need.least
            here = min(more, max(0, free[need.node]))
            free[need.node] -= here
            rest[place] = more - here
    for place, more in rest.items():
        found = _elsewhere(more, needs[place], free)
        if found:
            away[needs[place].name][needs[place].node] = found
    return away


def names(away: Away, node: str) -> tuple[str, ...]:
    """Return the node of each worker for the devices on `node` that runs on another one."""
    return tuple(other for other, workers in sorted(away.get(node, {}).items()) for _ in range(workers))


def _elsewhere(workers: int, need: Need, free: dict[str, int]) -> dict[str, int]:
    """Return where `workers` of a need run, and take their cores from `free`."""
    found: dict[str, int] = {}
    kept = [node for node in need.before if node != need.node and free.get(node, 0) > 0]
    others = sorted((node for node in free if node != need.node), key=lambda node: (-free[node], node))
    for most, nodes in ((need.before, kept), (free.copy(), others)):
        for node in nodes:
            taken = min(workers, free[node], most[node])
            if taken > 0:
                found[node] = found.get(node, 0) + taken
                free[node] -= taken
                workers -= taken
    return found
