"""The description of a group of processes that was made by name."""

from __future__ import annotations

import enum

import msgspec

from dragon.infrastructure.policy import Policy
from dragon.infrastructure.process_desc import ProcessDescriptor


class GroupMember(msgspec.Struct):
    """A process of a group.

    Attributes:
        state: whether it runs.
        uid: its puid.
        placement: the index of its node.
        desc: its description.
        error_code: its exit code; None while it runs.
        error_info: always None.
    """

    state: ProcessDescriptor.State
    uid: int
    placement: int
    desc: ProcessDescriptor
    error_code: int | None = None
    error_info: str | None = None


class GroupDescriptor(msgspec.Struct):
    """A group.

    Attributes:
        state: whether it was destroyed.
        g_uid: its number.
        name: its name.
        sets: its members, those that were made of one message in one list.
        policy: the placement that create() was called with, in its result; else None.
        resilient: always False.
    """

    class State(enum.IntEnum):
        """The state of a group; PENDING is not used."""

        PENDING, ACTIVE, DEAD = 0, 1, 2

    state: State
    g_uid: int
    name: str
    sets: list[list[GroupMember]]
    policy: Policy | None = None
    resilient: bool = False
