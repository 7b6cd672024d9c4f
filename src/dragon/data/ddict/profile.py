"""Counts, times and logs the operations of a handle."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import Any

from dragon.data.ddict.shards import LATER, AnyShard, Done, Pending
from dragon.shards.records import Record

__all__ = ["DDictOperationProfile", "Observed", "Observer"]

_SHOWN = 60  # bytes of a key that are logged


@dataclass
class DDictOperationProfile:
    """The measurements of all calls of one operation.

    Attributes:
        count: number of calls.
        remote: number of calls that another node answered.
        bytes: bytes of the values that were stored or read, in their encoded form.
        seconds: total duration.
        longest: duration of the longest call in seconds.

    Examples:
        >>> from dragon.data.ddict import DDict
        >>> with DDict(1, 1, 16 * 2**20) as ddict:
        ...     ddict.profile_reset()
        ...     ddict["a"] = bytes(1000)
        ...     put = ddict.profile()["put"]
        ...     put.count, put.longest <= put.seconds
        (1, True)
    """

    count: int = 0
    remote: int = 0
    bytes: int = 0
    seconds: float = 0.0
    longest: float = 0.0


class Observer:
    """Measures operations. If `log` is set, each operation is logged."""

    def __init__(self) -> None:
        self.log: logging.Logger | None = None
        self._operations: dict[str, DDictOperationProfile] = {}

    def reset(self) -> None:
        """Reset all numbers to zero."""
        self._operations = {}

    def profile(self) -> dict[str, DDictOperationProfile]:
        """Return a copy of the measurements, by operation."""
        return {name: replace(seen) for name, seen in self._operations.items()}

    def add(
        self, name: str, shard: AnyShard, key: bytes, size: int, seconds: float, error: BaseException | None
    ) -> None:
        """Add an operation that has ended."""
        seen = self._operations.setdefault(name, DDictOperationProfile())
        seen.count += 1
        seen.remote += shard.local is None
        seen.bytes += size
        seen.seconds += seconds
        seen.longest = max(seen.longest, seconds)
        if self.log is not None:
            ended = "" if error is None else f", {type(error).__name__}"
            which = f" {key[1:_SHOWN].decode(errors='replace')!r}" if key else ""
            self.log.debug("%s%s, %s: %d bytes, %.1f µs%s", name, which, shard.where, size, seconds * 1e6, ended)


class _Call:
    """One operation, measured until the end of the block or until end()."""

    def __init__(self, observer: Observer, name: str, shard: AnyShard, key: bytes, size: int) -> None:
        self._observer, self._name, self._shard, self._key, self._size = observer, name, shard, key, size
        self._ended = False
        self._begun = time.perf_counter()

    def note(self, size: int) -> None:
        """Add the bytes of a value that was read."""
        self._size += size

    def end(self, error: BaseException | None = None) -> None:
        """End the operation; does nothing the second time."""
        if not self._ended:
            self._ended = True
            seconds = time.perf_counter() - self._begun
            self._observer.add(self._name, self._shard, self._key, self._size, seconds, error)

    def __enter__(self) -> _Call:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.end(error)


class _ObservedPending(Pending):
    """A pending operation, which is measured until its result."""

    def __init__(self, call: _Call, pending: Pending) -> None:
        self._call, self._pending = call, pending
        if isinstance(pending, Done):
            call.end()

    def result(self, timeout: float | None = None) -> Any:
        with self._call:
            return self._pending.result(timeout)


class _ObservedValues(Pending):
    """Pending values of one request. Those that are LATER are measured by the request that follows."""

    def __init__(self, calls: list[_Call], pending: Pending) -> None:
        self._calls, self._pending = calls, pending

    def result(self, timeout: float | None = None) -> Any:
        try:
            values = self._pending.result(timeout)
        except BaseException as error:
            for call in self._calls:
                call.end(error)
            raise
        for call, value in zip(self._calls, values, strict=True):
            if value is not LATER:
                call.end()
        return values


class Observed:
    """A shard whose operations an observer measures. It has the methods of the shard."""

    def __init__(self, shard: AnyShard, observer: Observer) -> None:
        self._shard = shard
        self._observer = observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shard, name)

    def _call(self, name: str, key: bytes = b"", size: int = 0) -> _Call:
        return _Call(self._observer, name, self._shard, key, size)

    def value(self, key: bytes, checkpoint: int) -> Any:
        """Return the value of a key, observed as `get`."""
        with self._call("get", key) as call:
            return self._shard.value(key, checkpoint, call.note)

    def begin_value(self, key: bytes, checkpoint: int) -> Pending:
        """Begin value(), observed as `get`."""
        call = self._call("get", key)
        return _ObservedPending(call, self._shard.begin_value(key, checkpoint, call.note))

    def begin_values(self, keys: list[bytes], checkpoint: int) -> Pending:
        """Begin value() of several keys, each observed as `get`."""
        calls = [self._call("get", key) for key in keys]
        return _ObservedValues(calls, self._shard.begin_values(keys, checkpoint, [call.note for call in calls]))

    def put(self, key: bytes, record: Record, checkpoint: int, flags: int = 0) -> None:
        """Store a record, observed as `put`."""
        with self._call("put", key, record.size):
            self._shard.put(key, record, checkpoint, flags)

    def begin_put(self, key: bytes, record: Record, checkpoint: int, flags: int = 0) -> Pending:
        """Begin put(), observed as `put`."""
        call = self._call("put", key, record.size)
        return _ObservedPending(call, self._shard.begin_put(key, record, checkpoint, flags))

    def put_new(self, key: bytes, record: Record, checkpoint: int) -> bool:
        """Store a record unless the key exists, observed as `put_new`."""
        with self._call("put_new", key, record.size):
            return self._shard.put_new(key, record, checkpoint)

    def begin_put_new(self, key: bytes, record: Record, checkpoint: int) -> Pending:
        """Begin put_new(), observed as `put_new`."""
        call = self._call("put_new", key, record.size)
        return _ObservedPending(call, self._shard.begin_put_new(key, record, checkpoint))

    def begin_put_many(self, records: list[tuple[bytes, Record]], checkpoint: int, flags: int = 0) -> Pending:
        """Begin put_many(), observed as one `put_many` of the sum of the records' bytes."""
        call = self._call("put_many", size=sum(record.size for _, record in records))
        return _ObservedPending(call, self._shard.begin_put_many(records, checkpoint, flags))

    def take(self, key: bytes, checkpoint: int) -> Any:
        """Return the value of a key and delete it, observed as `pop`."""
        with self._call("pop", key) as call:
            return self._shard.take(key, checkpoint, call.note)

    def pop(self, key: bytes, checkpoint: int) -> Any:
        """Delete a key, observed as `delete`."""
        with self._call("delete", key):
            return self._shard.pop(key, checkpoint)

    def contains(self, key: bytes, checkpoint: int) -> bool:
        """Return whether a key is there, observed as `contains`."""
        with self._call("contains", key):
            return self._shard.contains(key, checkpoint)

    def add(self, key: bytes, value: int, checkpoint: int) -> int:
        """Add to the number of a key and return the shard's answer, observed as `fetch_add`."""
        with self._call("fetch_add", key):
            return self._shard.add(key, value, checkpoint)

    def begin(self, method: str, *arguments: Any) -> Pending:
        """Begin any operation with plain arguments, observed under its own name."""
        call = self._call(method)
        return _ObservedPending(call, self._shard.begin(method, *arguments))
