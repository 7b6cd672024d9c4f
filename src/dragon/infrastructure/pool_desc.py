"""The description of a pool that dragon.globalservices.pool made."""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class PoolOptions(msgspec.Struct):
    """Options of dragonhpc that have no effect: a pool is on the node where it is made."""

    class Placement(enum.IntEnum):
        """The node of a pool; has no effect."""

        DEFAULT, LOCAL, SPECIFIC, ANYWHERE = range(4)

    placement: Placement = Placement.DEFAULT
    target_node: int = 0
    sattr: Any = ""


class PoolDescriptor(msgspec.Struct):
    """A pool.

    Attributes:
        m_uid: its number.
        name: its name.
        node: the index of its node.
        state: whether it was destroyed.
        sdesc: the argument of MemoryPool.attach().
    """

    class State(enum.IntEnum):
        """The state of a pool; PENDING is not used."""

        PENDING, ACTIVE, DEAD = 1, 2, 3

    m_uid: int
    name: str
    node: int
    state: State
    sdesc: bytes
