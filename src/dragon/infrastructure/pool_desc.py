"""What is known of a pool that was made by dragon.globalservices.pool."""

from __future__ import annotations

import enum
from typing import Any

import msgspec

__all__ = ["PoolDescriptor", "PoolOptions"]


class PoolOptions(msgspec.Struct):
    """Taken and unused: a pool is on the node where it is made."""

    class Placement(enum.IntEnum):
        """Where a pool is."""

        DEFAULT = 0
        LOCAL = 1
        SPECIFIC = 2
        ANYWHERE = 3

    placement: Placement = Placement.DEFAULT
    target_node: int = 0
    sattr: Any = ""


class PoolDescriptor(msgspec.Struct):
    """A pool: its number, name, the index of its node, and what MemoryPool.attach() takes."""

    class State(enum.IntEnum):
        """DEAD ones were destroyed."""

        PENDING = 1
        ACTIVE = 2
        DEAD = 3

    m_uid: int
    name: str
    node: int
    state: State
    sdesc: bytes
