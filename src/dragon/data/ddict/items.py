"""One key of a distributed dictionary at a time: read, written, removed and waited for."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from dragon.data.ddict.codec import OWN
from dragon.data.ddict.handle import Handle
from dragon.data.ddict.lookups import Asked
from dragon.data.ddict.memory_view import memory_of
from dragon.data.ddict.shards import AnyShard, Pending
from dragon.data.ddict.views import equal
from dragon.infrastructure.ddict_errors import DDictError, DDictKeyError
from dragon.shards.entries import PERSISTENT
from dragon.shards.records import encode_key, encode_value
from dragon.shards.shard import MISSING

__all__ = ["Items"]

_UNSET: Any = object()


class Items(Handle):
    """A handle that reads and writes single keys."""

    def __getitem__(self, key: Any) -> Any:
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
        return value if codec is OWN else codec.loaded(value)

    def __setitem__(self, key: Any, value: Any) -> None:
        scope, codec = self._scope, self._codec
        encoded, record = (
            (encode_key(key), encode_value(value)) if codec is OWN else (codec.key(key), codec.record(value))
        )
        if self._batch is not None:
            self._batch.add(encoded, record)
            return
        shard = scope.one or scope.shard(encoded)
        if self._writers.guarded:
            self._writers.allow(shard)
        shard.put(encoded, record, scope.checkpoint)

    def pput(self, key: Any, value: Any) -> None:
        """Put a value that later checkpoints show too."""
        if self._batch is not None and not self._batch.flags:
            raise DDictError(
                "this batch is not one of persistent puts: start_batch_put(persist=True)", "INVALID_OPERATION"
            )
        encoded, record = self._codec.key(key), self._codec.record(value)
        if self._batch is not None:
            self._batch.add(encoded, record)
            return
        shard = self._scope.shard(encoded)
        self._writers.write(shard, lambda: shard.put(encoded, record, self._scope.checkpoint, PERSISTENT))

    def __delitem__(self, key: Any) -> None:
        if self._removed(key, lambda shard, encoded: shard.pop(encoded, self._scope.checkpoint)) is MISSING:
            raise self._missing(key)

    def pop(self, key: Any, default: Any = _UNSET) -> Any:
        """Remove a key; its value, or `default` where it is given. Raises DDictKeyError where there is neither."""
        found = self._removed(key, lambda shard, encoded: shard.take(encoded, self._scope.checkpoint))
        if found is MISSING:
            if default is _UNSET:
                raise self._missing(key)
            return default
        return self._codec.loaded(found)

    def _removed(self, key: Any, remove: Callable[[AnyShard, bytes], Any]) -> Any:
        """What `remove` makes of a key and the shard that holds it; MISSING where none does. Where keys are waited for,
        this one is."""
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
        """The value of a key, or MISSING."""
        return self._codec.loaded(self._lookups.value(self._codec.key(key)))

    def get(self, key: Any, default: Any = _UNSET) -> Any:
        """The value of a key, or `default` where the dictionary does not have the key. With wait_for_keys it is waited
        for, unless a default is given and no checkpoint of the working set up to this one has it."""
        value = self._now(key)
        if value is not MISSING:
            return value
        if self.wait_for_keys and (default is _UNSET or self._lookups.has_had(self._codec.key(key))):
            return self[key]
        return None if default is _UNSET else default

    def put_new(self, key: Any, value: Any) -> bool:
        """Put a value unless the key is there; whether it was put. Of several processes that try, one does."""
        return bool(self.begin_put_new(key, value).result(self.timeout))

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """The value of a key, which is `default` from now on where there was none; for all processes the same one."""
        while True:
            value = self._now(key)
            if value is not MISSING:
                return value
            if self.put_new(key, default):
                return default

    def __contains__(self, key: Any) -> bool:
        return self._lookups.contains(self._codec.key(key))

    def fetch_add(self, key: Any, val: int = 1) -> int:
        """Add to an integer; the value before, 0 at first. Raises DDictError where it is something else, and TypeError
        where `val` is no integer."""
        val = operator.index(val)
        encoded = self._codec.key(key)
        shard = self._scope.shard(encoded)
        return int(self._writers.write(shard, lambda: shard.add(encoded, val, self._scope.checkpoint)))

    def wait_for(self, key: Any, value: Any, timeout: float | None = None) -> None:
        """Wait until a key has that value. Raises DDictTimeoutError."""
        self._lookups.wait_until(
            self._codec.key(key),
            lambda found: found is not MISSING and equal(self._codec.loaded(found), value),
            f"key {key!r} to be {value!r}",
            self.timeout if timeout is None else timeout,
        )

    # ---- one key, asked for or sent, and waited for later

    def begin_get(self, key: Any) -> Pending:
        """Ask for a value, which result() of what this returns gives to the same thread."""
        shard = self._scope.shard(self._codec.key(key))
        return Asked(self._lookups, self._codec, key, shard, self._begin_get(key))

    def _begin_get(self, key: Any) -> Pending:
        encoded = self._codec.key(key)
        return self._scope.shard(encoded).begin_value(encoded, self._scope.checkpoint)

    def begin_put(self, key: Any, value: Any) -> Pending:
        """Send a value; result() of what this returns waits until it is stored."""
        encoded = self._codec.key(key)
        shard = self._scope.shard(encoded)
        record = self._codec.record(value)
        put: Pending = self._writers.write(shard, lambda: shard.begin_put(encoded, record, self._scope.checkpoint))
        return put

    def begin_put_new(self, key: Any, value: Any) -> Pending:
        """Send a value unless the key is there; result() of what this returns says whether it was put."""
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
        """`self[key][start:stop]` of a bytes value, of which only that part is fetched.

        Raises DDictKeyError, and DDictError where the value is no bytes object.
        """
        return bytes(self._lookups.tell(self._codec.key(key), key, "part", start, stop))

    def bytes_size(self, key: Any) -> int:
        """The length of a bytes value, which is not fetched for that; -1 for any other. Raises DDictKeyError."""
        return int(self._lookups.tell(self._codec.key(key), key, "size"))

    def bytes_sizes(self) -> Iterator[tuple[Any, int]]:
        """All keys with the lengths of their bytes values, -1 for any other value."""
        for sizes in self._scope.on_all("sizes", self._scope.checkpoint):
            for key, size in sizes:
                yield self._codec.decoded(key), size

    def view(self, key: Any) -> AbstractContextManager[memoryview]:
        """The memory of a bytes or array value on this node, read-only and without a copy, within the block.

        What is deleted or replaced meanwhile keeps its memory until the block ends. Raises DDictKeyError where there is
        no such key, DDictError where its manager is on another node or its value is no single buffer.
        """
        return memory_of(self._scope, self._lookups, self._codec.key(key), key)
