"""Groups of processes that programs put together and look up by name (dragon.globalservices.group)."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from dragon.infrastructure.facts import PUID_NODE_SHIFT

__all__ = ["NamedGroup", "NamedGroups"]


class NamedGroup(msgspec.Struct):
    """The puids of its members, those that were made together in one list."""

    number: int
    name: str
    sets: list[list[int]]


class NamedGroups:
    """Those that were made on this node; their members may be on others."""

    OPERATIONS: ClassVar[set[str]] = {"create", "query", "numbered", "numbers", "add", "remove", "forget"}

    def __init__(self, node: int) -> None:
        self._node = node
        self._last = 0
        self._known: dict[int, NamedGroup] = {}

    def create(self, name: str, sets: list[list[int]]) -> NamedGroup:
        """A new one. An empty name becomes one that no other has."""
        self._last += 1
        number = (self._node << PUID_NODE_SHIFT) + self._last
        self._known[number] = NamedGroup(number, name or f"dragon_group_{number}", sets)
        return self._known[number]

    def query(self, identifier: str) -> NamedGroup:
        """The one of that name. Raises LookupError."""
        for known in self._known.values():
            if known.name == identifier:
                return known
        raise LookupError(f"the run has no group {identifier!r}")

    def numbered(self, number: int) -> NamedGroup:
        """The one of that number. Raises LookupError."""
        if number not in self._known:
            raise LookupError(f"the run has no group {number}")
        return self._known[number]

    def numbers(self) -> list[int]:
        """All of them."""
        return list(self._known)

    def add(self, number: int, members: list[list[int]]) -> None:
        """Further members. Raises LookupError."""
        self.numbered(number).sets.extend(members)

    def remove(self, number: int, members: list[int]) -> None:
        """They are members no longer. Raises LookupError."""
        known = self.numbered(number)
        known.sets = [[puid for puid in members_of if puid not in members] for members_of in known.sets]

    def forget(self, number: int) -> None:
        """There is no such group any more; its members are left alone."""
        self._known.pop(number, None)
