"""What of a value can be had without all of it: its length, a part, and its memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dragon.data.ddict.batches import Batches
from dragon.data.ddict.shards import Pending
from dragon.infrastructure.ddict_errors import DDictError, DDictKeyError

__all__ = ["Parts"]


class Parts(Batches):
    """What of a handle concerns parts of values."""

    def get_part(self, key: Any, start: int | None = None, stop: int | None = None) -> bytes:
        """self[key][start:stop] of a bytes value, of which only that part is fetched.

        Raises DDictKeyError, and DDictError where the value is no bytes object.
        """
        part = self._of_value(key, "part", start, stop)
        return bytes(part)

    def _of_value(self, key: Any, method: str, *arguments: Any) -> Any:
        """What a method of the shard that holds a key tells about its value. Raises DDictKeyError."""
        encoded = self._key(key)
        shard = self._shard(encoded)
        found = shard.begin(method, encoded, self._checkpoint, *arguments).result(self._timeout)
        if found is None and (other := self._elsewhere(shard, encoded, ask=True)) is not None:
            found = other.begin(method, encoded, self._checkpoint, *arguments).result(self._timeout)
        if found is None:
            raise self._missing(key, shard)
        return found

    def _begin_part(self, key: Any, start: int | None, stop: int | None) -> Pending:
        encoded = self._key(key)
        return self._shard(encoded).begin("part", encoded, self._checkpoint, start, stop)

    def bytes_size(self, key: Any) -> int:
        """The length of a bytes value, which is not fetched for that; -1 for any other. Raises DDictKeyError."""
        return int(self._of_value(key, "size"))

    def bytes_sizes(self) -> Iterator[tuple[Any, int]]:
        """All keys with the lengths of their bytes values, -1 for any other value."""
        for sizes in self._on_all("sizes", self._checkpoint):
            for key, size in sizes:
                yield self._decoded(key), size

    @contextmanager
    def view(self, key: Any) -> Iterator[memoryview]:
        """The memory of a bytes or array value on this node, read-only and without a copy, within the block.

        What is deleted or replaced meanwhile keeps its memory until the block ends. Raises DDictKeyError where there is
        no such key, DDictError where its manager is on another node or its value is no single buffer.
        """
        encoded = self._key(key)
        attached = self._attached  # its shards stay open until the block ends, also after detach() and destroy()
        shard = self._shard(encoded)
        if self._is_chosen() and not shard.begin("holds", encoded, self._checkpoint).result(self._timeout):
            shard = self._elsewhere(shard, encoded) or shard
        if shard.local is None:
            raise DDictError(
                f"key {key!r} lies with {shard.where}; a view is of this node's memory", "INVALID_OPERATION"
            )
        try:
            transaction, stored = shard.local.view(encoded, self._checkpoint)
        except DDictKeyError:
            raise self._missing(key, shard) from None
        try:
            if len(stored.blobs) != 1 or len(stored.blobs[0]) != 1:
                raise DDictError(
                    f"the value of {key!r} is not one buffer of 32 KiB to 2 GiB; read it with d[key]",
                    "INVALID_OPERATION",
                )
            memory = memoryview(stored.blobs[0][0]).toreadonly()
            yield memory
            memory.release()
        finally:
            transaction.abort()
            del transaction, attached
