"""Gives access to the memory of a value on this node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dragon.data.ddict.lookups import Lookups
from dragon.data.ddict.scope import Scope
from dragon.infrastructure.ddict_errors import DDictError, DDictKeyError

__all__ = ["memory_of"]


@contextmanager
def memory_of(scope: Scope, lookups: Lookups, key: bytes, name: Any) -> Iterator[memoryview]:
    """Yield the memory of a value that is one buffer, read-only and without a copy.

    A value that is deleted or replaced meanwhile keeps its memory until the block ends. `name` is the key as the user
    gave it. Raises DDictKeyError for a missing key, DDictError if its manager is on another node or its value is not a
    single buffer.
    """
    attached = scope.attached  # its shards stay open until the block ends, also after detach() and destroy()
    shard = scope.shard(key)
    if lookups.is_chosen() and not shard.begin("holds", key, scope.checkpoint).result(scope.timeout):
        shard = lookups.elsewhere(shard, key) or shard
    if shard.local is None:
        raise DDictError(f"key {name!r} is held by {shard.where}; view() needs a key of this node", "INVALID_OPERATION")
    try:
        transaction, stored = shard.local.view(key, scope.checkpoint)
    except DDictKeyError:
        raise lookups.missing(name, shard) from None
    try:
        if len(stored.blobs) != 1 or len(stored.blobs[0]) != 1:
            raise DDictError(
                f"the value of {name!r} is not one buffer of 32 KiB to 2 GiB; read it with d[key]",
                "INVALID_OPERATION",
            )
        memory = memoryview(stored.blobs[0][0]).toreadonly()
        yield memory
        memory.release()
    finally:
        transaction.abort()
        del transaction, attached
