"""Kinds of devices: on which an application may run, which it prefers, and its turns to get some of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchloader.scheduling.actions import Node
from torchloader.scheduling.application import Application, Placement, Spec

__all__ = ["Kinds", "Turn", "any_kind", "devices_by_kind", "fastest_first", "kind_of", "turns"]

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
