"""Channels and pools that programs create with dragon.globalservices, by number and name. Node 0 keeps those of all
nodes."""

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
    """All named objects of a run."""

    def __init__(self) -> None:
        self._known: dict[str, dict[int, NamedObject]] = {}

    def handlers(self) -> list[Handler]:
        """Return the handlers of the requests that this object serves."""
        return [
            CreateNamedObject.served_by(lambda r: self.create(r.kind, r.name, r.at, r.serialized)),
            FindNamedObject.served_by(lambda r: self.find(r.kind, r.key)),
            ListNamedObjects.served_by(lambda r: self.numbers(r.kind)),
            ForgetNamedObject.served_by(lambda r: self.forget(r.kind, r.number)),
        ]

    def create(self, kind: str, name: str, at: int, serialized: bytes) -> NamedObject:
        """Register an object. For an empty name a unique one is chosen. Raises ValueError if the name is taken."""
        known = self._known.setdefault(kind, {})
        if name and any(one.name == name and one.alive for one in known.values()):
            raise ValueError(f"a {kind} {name!r} exists already in this run")
        number = _FIRST + len(known)
        known[number] = NamedObject(kind, number, name or f"dragon_{kind}_{number}", at, serialized)
        return known[number]

    def find(self, kind: str, key: int | str) -> NamedObject:
        """Return the object of that number, even if it was destroyed, or the live one of that name. Raises
        LookupError."""
        for one in self._known.get(kind, {}).values():
            if key == one.number or (key == one.name and one.alive):
                return one
        raise LookupError(f"the run has no {kind} {key!r}")

    def numbers(self, kind: str) -> list[int]:
        """Return the numbers of live objects."""
        return [one.number for one in self._known.get(kind, {}).values() if one.alive]

    def forget(self, kind: str, number: int) -> None:
        """Mark an object as destroyed."""
        self._known[kind][number].alive = False
