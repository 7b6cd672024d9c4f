"""What is known of a group of processes that was made by name."""

from __future__ import annotations

import enum

import msgspec

from dragon.infrastructure.policy import Policy
from dragon.infrastructure.process_desc import ProcessDescriptor

__all__ = ["GroupDescriptor", "GroupMember"]


class GroupMember(msgspec.Struct):
    """A process of the group: whether it runs, its puid, the index of its node, what else is known of it, and its exit
    code once it has ended."""

    state: ProcessDescriptor.State
    uid: int
    placement: int
    desc: ProcessDescriptor
    error_code: int | None = None
    error_info: str | None = None


class GroupDescriptor(msgspec.Struct):
    """A group: its number, its name, and its members, those that were made of one message in one list."""

    class State(enum.IntEnum):
        """ACTIVE groups are known to the run, DEAD ones were destroyed."""

        PENDING = 0
        ACTIVE = 1
        DEAD = 2

    state: State
    g_uid: int
    name: str
    sets: list[list[GroupMember]]
    policy: Policy | None = None
    resilient: bool = False
