"""Groups of processes that programs define and look up by name (dragon.globalservices.group)."""

from __future__ import annotations

from dragon.infrastructure.facts import PUID_NODE_SHIFT
from dragon.runtime.protocol.groups import (
    AddMembers,
    CreateNamedGroup,
    FindNamedGroup,
    FindNumberedGroup,
    ForgetNamedGroup,
    ListNamedGroups,
    NamedGroup,
    RemoveMembers,
)
from dragon.runtime.protocol.request import Handler


class NamedGroups:
    """The named groups that were created on this node; their members may be on others."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._last = 0
        self._known: dict[int, NamedGroup] = {}

    def handlers(self) -> list[Handler]:
        """Return the handlers of the requests that this object serves."""
        return [
            CreateNamedGroup.served_by(lambda r: self.create(r.name, r.sets)),
            FindNamedGroup.served_by(lambda r: self.named(r.name)),
            FindNumberedGroup.served_by(lambda r: self.numbered(r.number)),
            ListNamedGroups.served_by(lambda r: list(self._known)),
            AddMembers.served_by(lambda r: self.add(r.number, r.sets)),
            RemoveMembers.served_by(lambda r: self.remove(r.number, r.members)),
            ForgetNamedGroup.served_by(lambda r: self.forget(r.number)),
        ]

    def create(self, name: str, sets: list[list[int]]) -> NamedGroup:
        """Create a group. For an empty name a unique one is chosen."""
        self._last += 1
        number = (self._node << PUID_NODE_SHIFT) + self._last
        self._known[number] = NamedGroup(number, name or f"dragon_group_{number}", sets)
        return self._known[number]

    def named(self, name: str) -> NamedGroup:
        """Return the group of that name. Raises LookupError."""
        for known in self._known.values():
            if known.name == name:
                return known
        raise LookupError(f"the run has no group {name!r}")

    def numbered(self, number: int) -> NamedGroup:
        """Return the group of that number. Raises LookupError."""
        if number not in self._known:
            raise LookupError(f"the run has no group {number}")
        return self._known[number]

    def add(self, number: int, sets: list[list[int]]) -> None:
        """Add members. Raises LookupError."""
        self.numbered(number).sets.extend(sets)

    def remove(self, number: int, members: list[int]) -> None:
        """Remove members. Raises LookupError."""
        known = self.numbered(number)
        known.sets = [[puid for puid in members_of if puid not in members] for members_of in known.sets]

    def forget(self, number: int) -> None:
        """Remove a group; its members are not affected."""
        self._known.pop(number, None)
