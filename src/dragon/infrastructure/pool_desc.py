"""The description of a pool that dragon.globalservices.pool made."""

from __future__ import annotations

import enum
from typing import Any

import msgspec


class PoolOptions(msgspec.Struct):
    """Options of dragonhpc that have no effect: a pool is on the node where it is made.

    Attributes:
        placement: has no effect.
        target_node: has no effect.
        sattr: has no effect.
    """

    class Placement(enum.IntEnum):
        """The node of a pool; has no effect.

        Attributes:
            DEFAULT: has no effect.
            LOCAL: has no effect.
            SPECIFIC: has no effect.
            ANYWHERE: has no effect.
        """

        DEFAULT = 0
        LOCAL = 1
        SPECIFIC = 2
        ANYWHERE = 3

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
        """The state of a pool.

        Attributes:
            PENDING: not used.
            ACTIVE: it exists.
            DEAD: it was destroyed.
        """

        PENDING = 1
        ACTIVE = 2
        DEAD = 3

    m_uid: int
    name: str
    node: int
    state: State
    sdesc: bytes
