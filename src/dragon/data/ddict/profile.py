"""Counts, times and logs the operations of a handle."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from dragon.data.ddict.shards import LATER, AnyShard, Done, Pending
from dragon.shards.shard import MISSING

_SHOWN = 60  # bytes of a key that are logged
# The names of methods in a profile, where they differ, and the methods that are called without begin() and call().
_NAMES = {"value": "get", "values": "get", "take": "pop", "pop": "delete", "add": "fetch_add"}
_DIRECT = ("value", "put", "put_new", "take", "pop", "contains")


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


class Observed:
    """A shard whose operations an observer measures. It has the methods of the shard."""

    def __init__(self, shard: AnyShard, observer: Observer) -> None:
        self._sizes: list[int] = []  # of the values that the current operation has read
        self._shard = shard.within(shard.timeout, self._sizes.append)
        self._observer = observer

    def __getattr__(self, name: str) -> object:
        found = getattr(self._shard, name)
        return partial(self._timed, name, found) if name in _DIRECT else found

    def _timed(self, method: str, do: Callable[..., Any], *arguments: object) -> object:
        return self._measured(method, arguments, time.perf_counter(), lambda: do(*arguments))

    def call(self, method: str, *arguments: object) -> object:
        """Call a method of the shard, observed under its own name."""
        return self._timed(method, partial(self._shard.call, method), *arguments)

    def begin(self, method: str, *arguments: object) -> Pending:
        """Begin a method of the shard, observed until its result."""
        begun = time.perf_counter()
        pending = self._shard.begin(method, *arguments)

        def wait(timeout: float | None) -> object:
            return self._measured(method, arguments, begun, lambda: pending.result(timeout))

        return Done(wait(None)) if isinstance(pending, Done) else Pending(wait)

    def _measured(self, method: str, arguments: tuple[Any, ...], begun: float, end: Callable[[], Any]) -> object:
        """Return the result of `end()`, which ends an operation, and add that to the measurements."""
        failure: BaseException | None = None
        result = None
        try:
            result = end()
        except BaseException as error:
            failure = error
            raise
        finally:
            name, seconds = _NAMES.get(method, method), time.perf_counter() - begun
            for key, size in self._read(method, arguments, result):
                self._observer.add(name, self._shard, key, size, seconds, failure)
            self._sizes.clear()
        return result

    def _read(self, method: str, arguments: tuple[Any, ...], result: object) -> list[tuple[bytes, int]]:
        """Return the keys of an operation with the sizes of their values, without those that are read LATER."""
        if method == "values":
            sizes = iter(self._sizes)
            values = result if isinstance(result, list) else [MISSING] * len(arguments[0])  # None if it failed
            found = zip(arguments[0], values, strict=True)
            return [(key, 0 if value is MISSING else next(sizes)) for key, value in found if value is not LATER]
        if method == "put_many":
            return [(b"", sum(record.size for _, record in arguments[0]))]
        key = arguments[0] if arguments and isinstance(arguments[0], bytes) else b""
        return [(key, arguments[1].size if method in ("put", "put_new") else sum(self._sizes))]
