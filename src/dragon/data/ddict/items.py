"""The part of a dictionary's handle that reads, writes, removes and waits for single keys."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar, overload

from dragon.data.ddict.codec import OWN
from dragon.data.ddict.handle import Handle
from dragon.data.ddict.lookups import Asked
from dragon.data.ddict.shards import AnyShard, Pending
from dragon.data.ddict.views import equal
from dragon.infrastructure.ddict_errors import DDictError, DDictKeyError
from dragon.infrastructure.generic import K, V
from dragon.shards.entries import PERSISTENT
from dragon.shards.records import encode_key, encode_value
from dragon.shards.shard import MISSING

__all__ = ["Items"]

_UNSET: Any = object()
T = TypeVar("T")


class Items(Handle[K, V], Generic[K, V]):
    """A handle that reads and writes single keys."""

    def __getitem__(self, key: K) -> V:
        scope, codec = self._scope, self._codec
        encoded = encode_key(key) if codec is OWN else codec.key(key)
        shard = scope.one or scope.shard(encoded)
        value = shard.value(encoded, scope.checkpoint)
        if value is MISSING:
            if scope.options.wait_for_keys:
                value = self._lookups.wait_for_key(encoded, key)
            else:
                value = self._lookups.value_elsewhere(shard, encoded)
                if value is MISSING:
                    raise self._lookups.missing(key, shard)
        return value if codec is OWN else codec.loaded(value)  # type: ignore[no-any-return]

    def __setitem__(self, key: K, value: V) -> None:
        scope, codec = self._scope, self._codec
        encoded, record = (
            (encode_key(key), encode_value(value)) if codec is OWN else (codec.key(key), codec.record(value))
        )
        if self._batch is not None:
            self._batch.add(encoded, record, 0)
            return
        shard = scope.one or scope.shard(encoded)
        if self._writers.guarded:
            self._writers.allow(shard)
        shard.put(encoded, record, scope.checkpoint)

    def pput(self, key: K, value: V) -> None:
        """Put a value that later checkpoints have too. Raises DDictError within a batch that is not one of persistent
        puts."""
        encoded, record = self._codec.key(key), self._codec.record(value)
        if self._batch is not None:
            self._batch.add(encoded, record, PERSISTENT)
            return
        shard = self._scope.shard(encoded)
        self._writers.write(shard, lambda: shard.put(encoded, record, self._scope.checkpoint, PERSISTENT))

    def __delitem__(self, key: K) -> None:
        if self._removed(key, lambda shard, encoded: shard.pop(encoded, self._scope.checkpoint)) is MISSING:
            raise self._missing(key)

    @overload
    def pop(self, key: K, /) -> V: ...
    @overload
    def pop(self, key: K, default: V | T) -> V | T: ...
    def pop(self, key: K, default: Any = _UNSET) -> Any:
        """Remove a key and return its value, or `default` if the key is missing. Raises DDictKeyError without a
        default."""
        found = self._removed(key, lambda shard, encoded: shard.take(encoded, self._scope.checkpoint))
        if found is MISSING:
            if default is _UNSET:
                raise self._missing(key)
            return default
        return self._codec.loaded(found)

    def _removed(self, key: Any, remove: Callable[[AnyShard, bytes], Any]) -> Any:
        """Return the result of `remove(shard, encoded key)` on the shard that holds a key, MISSING if none does.

        With wait_for_keys it waits for the key.
        """
        encoded = self._codec.key(key)
        shard = self._scope.shard(encoded)
        value = self._writers.write(shard, lambda: remove(shard, encoded))
        if value is MISSING and (other := self._lookups.elsewhere(shard, encoded)) is not None:
            value = self._writers.write(other, lambda: remove(other, encoded))
        while value is MISSING and self.wait_for_keys:
            self._lookups.wait_for_key(encoded, key)
            value = self._writers.write(shard, lambda: remove(shard, encoded))
        return value

    def _missing(self, key: Any) -> DDictKeyError:
        return self._lookups.missing(key, self._scope.shard(self._codec.key(key)))

    def _now(self, key: Any) -> Any:
        """Return the value of a key, or MISSING, without waiting for the key."""
        return self._codec.loaded(self._lookups.value(self._codec.key(key)))

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, default: V | T) -> V | T: ...
    def get(self, key: K, default: Any = _UNSET) -> Any:
        """Return the value of a key, or `default` if the key is missing.

        With wait_for_keys it waits for the key, unless a default is given and no checkpoint of the working set up to
        this one has the key.
        """
        value = self._now(key)
        if value is not MISSING:
            return value
        if self.wait_for_keys and (default is _UNSET or self._lookups.has_had(self._codec.key(key))):
            return self[key]
        return None if default is _UNSET else default

    def put_new(self, key: K, value: V) -> bool:
        """Put a value unless the key exists. Returns whether it was put: of several processes that try, one
        succeeds."""
        encoded, record = self._codec.key(key), self._codec.record(value)
        shard = self._scope.shard(encoded)
        return bool(self._writers.write(shard, lambda: shard.put_new(encoded, record, self._scope.checkpoint)))

    def setdefault(self, key: K, default: V = None) -> V:  # type: ignore[assignment]
        """Return the value of a key, after putting `default` if the key is missing. All processes get the same
        value."""
        while True:
            value = self._now(key)
            if value is not MISSING:
                return value  # type: ignore[no-any-return]
            if self.put_new(key, default):
                return default

    def __contains__(self, key: Any) -> bool:
        return self._lookups.contains(self._codec.key(key))

    def fetch_add(self, key: Any, val: int = 1) -> int:
        """Add `val` to an integer and return the value before, which is 0 for a missing key.

        Raises DDictError if the value is not an integer, TypeError if `val` is not.
        """
        val = operator.index(val)
        encoded = self._codec.key(key)
        shard = self._scope.shard(encoded)
        return int(self._writers.write(shard, lambda: shard.add(encoded, val, self._scope.checkpoint)))

    def wait_for(self, key: Any, value: Any, timeout: float | None = None) -> None:
        """Wait until a key has that value. Raises DDictTimeoutError after `timeout` seconds; None: the handle's
        timeout."""
        self._lookups.wait_until(
            self._codec.key(key),
            lambda found: found is not MISSING and equal(self._codec.loaded(found), value),
            f"key {key!r} to be {value!r}",
            self.timeout if timeout is None else timeout,
        )

    # ---- operations on one key whose result is waited for later

    def begin_get(self, key: Any) -> Pending:
        """Request a value. result() of the returned object, called in the same thread, waits for it and returns it."""
        shard = self._scope.shard(self._codec.key(key))
        return Asked(self._lookups, self._codec, key, shard, self._begin_get(key))

    def _begin_get(self, key: Any) -> Pending:
        encoded = self._codec.key(key)
        return self._scope.shard(encoded).begin_value(encoded, self._scope.checkpoint)

    def begin_put(self, key: Any, value: Any) -> Pending:
        """Send a value. result() of the returned object waits until it is stored."""
        encoded = self._codec.key(key)
        shard = self._scope.shard(encoded)
        record = self._codec.record(value)
        put: Pending = self._writers.write(shard, lambda: shard.begin_put(encoded, record, self._scope.checkpoint))
        return put

    def begin_put_new(self, key: Any, value: Any) -> Pending:
        """Send a value unless the key exists. result() of the returned object returns whether it was put."""
        encoded = self._codec.key(key)
        shard = self._scope.shard(encoded)
        record = self._codec.record(value)
        put: Pending = self._writers.write(shard, lambda: shard.begin_put_new(encoded, record, self._scope.checkpoint))
        return put

    def _begin_part(self, key: Any, start: int | None, stop: int | None) -> Pending:
        encoded = self._codec.key(key)
        return self._scope.shard(encoded).begin("part", encoded, self._scope.checkpoint, start, stop)

    # ---- parts of a value

    def get_part(self, key: Any, start: int | None = None, stop: int | None = None) -> bytes:
        """Return `self[key][start:stop]` of a bytes value, fetching only that part.

        Raises DDictKeyError, and DDictError if the value is not a bytes object.
        """
        return bytes(self._lookups.tell(self._codec.key(key), key, "part", start, stop))

    def bytes_size(self, key: Any) -> int:
        """Return the length of a bytes value without fetching it; -1 for any other value. Raises DDictKeyError."""
        return int(self._lookups.tell(self._codec.key(key), key, "size"))

    def bytes_sizes(self) -> Iterator[tuple[Any, int]]:
        """Yield all keys with the lengths of their bytes values, -1 for any other value."""
        for sizes in self._scope.on_all("sizes", self._scope.checkpoint):
            for key, size in sizes:
                yield self._codec.decoded(key), size

    @contextmanager
    def view(self, key: Any) -> Iterator[memoryview]:
        """Yield the memory of a bytes or array value on this node, read-only and without a copy, to a `with` block.

        A value that is deleted or replaced meanwhile keeps its memory until the block ends. Raises DDictKeyError for a
        missing key, DDictError if its manager is on another node or its value is not a single buffer.
        """
        scope, lookups, encoded = self._scope, self._lookups, self._codec.key(key)
        attached = scope.attached  # its shards stay open until the block ends, also after detach() and destroy()
        shard = scope.shard(encoded)
        if lookups.is_chosen() and not shard.begin("holds", encoded, scope.checkpoint).result(scope.timeout):
            shard = lookups.elsewhere(shard, encoded) or shard
        if shard.local is None:
            raise DDictError(f"key {key!r} is in {shard.where}; view() needs one of this node", "INVALID_OPERATION")
        try:
            transaction, stored = shard.local.view(encoded, scope.checkpoint)
        except DDictKeyError:
            raise lookups.missing(key, shard) from None
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
