"""The description of a pool of dragon.globalservices.pool."""

from __future__ import annotations

import enum

from dragon.infrastructure.process_desc import ProcessDescriptor
from dragon.infrastructure.structs import msgspec


class PoolOptions(msgspec.Struct):
    """Options without effect: a pool is on the node where it is made."""

    class Placement(enum.IntEnum):
        """The node of a pool."""

        DEFAULT, LOCAL, SPECIFIC, ANYWHERE = range(4)

    placement: Placement = Placement.DEFAULT
    target_node: int = 0
    sattr: object = ""


class PoolDescriptor(msgspec.Struct):
    """A pool. `sdesc` is the argument of MemoryPool.attach()."""

    State = ProcessDescriptor.State

    m_uid: int
    name: str
    node: int
    state: ProcessDescriptor.State
    sdesc: bytes
