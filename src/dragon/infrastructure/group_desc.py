"""The description of a group of dragon.globalservices.group."""

from __future__ import annotations

import enum

from dragon.infrastructure.policy import Policy
from dragon.infrastructure.process_desc import ProcessDescriptor
from dragon.infrastructure.structs import msgspec


class GroupMember(msgspec.Struct):
    """A process of a group."""

    state: ProcessDescriptor.State
    uid: int  # its puid
    placement: int  # the index of its node
    desc: ProcessDescriptor
    error_code: int | None = None  # its exit code; None while it runs
    error_info: str | None = None


class GroupDescriptor(msgspec.Struct):
    """A group. `policy` is the placement that create() was called with, in its result."""

    class State(enum.IntEnum):
        """Whether it exists; PENDING is not used."""

        PENDING, ACTIVE, DEAD = range(3)

    state: State
    g_uid: int
    name: str
    sets: list[list[GroupMember]]  # the members that were made of one message in one list
    policy: Policy | None = None
    resilient: bool = False
