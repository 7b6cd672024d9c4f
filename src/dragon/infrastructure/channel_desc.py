"""The description of a channel that dragon.globalservices.channel made."""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class ChannelOptions(msgspec.Struct, kw_only=True):
    """The options of a new channel.

    Attributes:
        local_opts: an object whose `capacity` and `block_size` are used, if it has them.
        ref_count: has no effect: every channel exists while a process has it.
    """

    local_opts: Any = None
    ref_count: bool = False


class ChannelDescriptor(msgspec.Struct):
    """A channel.

    Attributes:
        m_uid: the number of the pool that it is in, which is the index of its node.
        c_uid: its number.
        name: its name.
        node: the index of its node.
        state: whether it was destroyed.
        sdesc: the argument of Channel.attach().
    """

    class State(enum.IntEnum):
        """The state of a channel; PENDING is not used."""

        PENDING, ACTIVE, DEAD = 1, 2, 3

    m_uid: int
    c_uid: int
    name: str
    node: int
    state: State
    sdesc: bytes
