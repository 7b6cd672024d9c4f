"""What is known of a channel that was made by dragon.globalservices.channel."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

__all__ = ["ChannelDescriptor", "ChannelOptions"]


class ChannelOptions(msgspec.Struct, kw_only=True):
    """How a channel is made: of `local_opts` the `capacity` and `block_size` count, if they are there. `ref_count` is
    taken and unused: every channel lives while a process has it."""

    local_opts: Any = None
    ref_count: bool = False


class ChannelDescriptor(msgspec.Struct):
    """A channel: its number, the number of the pool and the index of the node that it is on, its name, and what
    Channel.attach() takes."""

    class State(enum.IntEnum):
        """DEAD ones were destroyed."""

        PENDING = 1
        ACTIVE = 2
        DEAD = 3

    m_uid: int
    c_uid: int
    name: str
    node: int
    state: State
    sdesc: bytes
