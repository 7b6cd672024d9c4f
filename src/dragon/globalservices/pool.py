"""Pools by number and name, for all processes of the run."""

from __future__ import annotations

import contextlib

from dragon.infrastructure.errors import DragonError
from dragon.infrastructure.pool_desc import PoolDescriptor, PoolOptions
from dragon.managed_memory import MemoryPool
from dragon.runtime.agent_client import ask
from dragon.runtime.protocol import objects
from dragon.runtime.run import this_run

__all__ = ["PoolError", "create", "destroy", "get_list", "query"]

_KIND = "pool"
_made: dict[int, MemoryPool] = {}  # the pools that this process keeps, by number


class PoolError(DragonError):
    """A pool cannot be made, or does not exist."""


def create(size: int, user_name: str = "", options: PoolOptions | None = None, soft: bool = False) -> PoolDescriptor:
    """Make a pool on this node with a limit of `size` bytes, which this process keeps until destroy() or its own end.

    With `soft` the existing pool of that name is returned, if there is one. Raises PoolError if the name is taken.
    """
    if soft and user_name:
        with contextlib.suppress(PoolError):
            return query(user_name)
    pool = MemoryPool(size)
    try:
        found = ask(objects.CreateNamedObject(_KIND, user_name, this_run().node, pool.serialize(), []))
    except ValueError as error:
        raise PoolError(str(error)) from error
    _made[found.number] = pool
    return _described(found)


def _described(found: objects.NamedObject) -> PoolDescriptor:
    state = PoolDescriptor.State.ACTIVE if found.alive else PoolDescriptor.State.DEAD
    sdesc = MemoryPool.numbered(found.serialized, found.number)
    return PoolDescriptor(found.number, found.name, found.node, state, sdesc)


def query(identifier: int | str) -> PoolDescriptor:
    """Return the pool of that number or name; a node's default pool has the node's number. Raises PoolError."""
    if isinstance(identifier, int) and 0 <= identifier < 2**32:
        default = MemoryPool.default(identifier).serialize()
        return PoolDescriptor(identifier, f"default_{identifier}", identifier, PoolDescriptor.State.ACTIVE, default)
    try:
        return _described(ask(objects.FindNamedObject(_KIND, identifier)))
    except LookupError as error:
        raise PoolError(str(error)) from error


def get_list() -> list[int]:
    """Return the numbers of the pools that were made and not destroyed."""
    return ask(objects.ListNamedObjects(_KIND))


def destroy(identifier: int | str) -> None:
    """Destroy a pool: it allocates no more blocks; existing blocks stay until they are freed. Raises PoolError."""
    found = query(identifier)
    if found.state == PoolDescriptor.State.DEAD or found.m_uid < 2**32:
        raise PoolError(f"pool {identifier!r} was destroyed, or is a node's own")
    (_made.pop(found.m_uid, None) or MemoryPool.attach(found.sdesc)).destroy()
    ask(objects.ForgetNamedObject(_KIND, found.m_uid))
