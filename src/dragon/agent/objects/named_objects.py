"""Channels and pools that programs make by dragon.globalservices, by number and name; those of all nodes on node 0."""

from __future__ import annotations

from dragon.runtime.protocol.objects import (
    CreateNamedObject,
    FindNamedObject,
    ForgetNamedObject,
    ListNamedObjects,
    NamedObject,
)
from dragon.runtime.protocol.request import Handler

__all__ = ["NamedObjects"]

_FIRST = 2**63  # above all numbers of processes and default pools


class NamedObjects:
    """All of a run."""

    def __init__(self) -> None:
        self._known: dict[str, dict[int, NamedObject]] = {}

    def handlers(self) -> list[Handler]:
        """What this answers."""
        return [
            CreateNamedObject.served_by(lambda r: self.create(r.kind, r.name, r.at, r.serialized)),
            FindNamedObject.served_by(lambda r: self.find(r.kind, r.key)),
            ListNamedObjects.served_by(lambda r: self.numbers(r.kind)),
            ForgetNamedObject.served_by(lambda r: self.forget(r.kind, r.number)),
        ]

    def create(self, kind: str, name: str, at: int, serialized: bytes) -> NamedObject:
        """A new one. An empty name becomes one that no other has. Raises ValueError where the name is taken."""
        known = self._known.setdefault(kind, {})
        if name and any(one.name == name and one.alive for one in known.values()):
            raise ValueError(f"a {kind} {name!r} exists already in this run")
        number = _FIRST + len(known)
        known[number] = NamedObject(kind, number, name or f"dragon_{kind}_{number}", at, serialized)
        return known[number]

    def find(self, kind: str, key: int | str) -> NamedObject:
        """The one of that number, which may be gone, or the live one of that name. Raises LookupError."""
        for one in self._known.get(kind, {}).values():
            if key == one.number or (key == one.name and one.alive):
                return one
        raise LookupError(f"the run has no {kind} {key!r}")

    def numbers(self, kind: str) -> list[int]:
        """Of those that live."""
        return [one.number for one in self._known.get(kind, {}).values() if one.alive]

    def forget(self, kind: str, number: int) -> None:
        """It was destroyed."""
        self._known[kind][number].alive = False
