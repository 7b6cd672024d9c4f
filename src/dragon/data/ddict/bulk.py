"""Operations on many keys, or on all managers, with few requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from dragon.data.ddict.scope import Scope
from dragon.data.ddict.shards import LATER, AnyShard, Done, Pending, spread
from dragon.data.ddict.writers import Writers
from dragon.infrastructure.ddict_errors import DDictError, DDictFullError
from dragon.infrastructure.plain_number import in_units
from dragon.shards.entries import BROADCAST
from dragon.shards.records import Record
from dragon.shards.shard import MISSING

__all__ = ["AT_ONCE", "Bulk", "Placed", "PutBatch"]

AT_ONCE = 64 * 2**20
"""Bytes of records that are sent together."""
_KEY_BATCH = 64  # keys of one request

# (key, record) pairs by the manager that is to hold them.
Placed = list[list[tuple[bytes, Record]]]


class Bulk:
    """Reads and writes many keys of a scope. Keys are in their encoded form."""

    def __init__(self, scope: Scope, writers: Writers) -> None:
        self._scope, self._writers = scope, writers

    def present(self, keys: Iterable[tuple[AnyShard, bytes]]) -> Iterator[tuple[bytes, Any]]:
        """Yield keys of shards with their values before decoding, read in batches. Keys that were deleted are
        left out."""
        wanted = iter(keys)
        scope = self._scope
        while together := list(islice(wanted, _KEY_BATCH)):
            for (shard, key), one in zip(together, self._ask_others(together), strict=True):
                value = (one or shard.begin_value(key, scope.checkpoint)).result(scope.timeout)
                if value is not MISSING:
                    yield key, value

    def _ask_others(self, keys: list[tuple[AnyShard, bytes]]) -> list[Pending | None]:
        """Request values from other nodes; None for a value of this node, which is read only when it is needed."""
        scope = self._scope
        far: dict[AnyShard, list[int]] = {}
        for place, (shard, _) in enumerate(keys):
            if shard.local is None:
                far.setdefault(shard, []).append(place)
        asked = [
            (shard, places, shard.begin_values([keys[i][1] for i in places], scope.checkpoint))
            for shard, places in far.items()
        ]
        pending: list[Pending | None] = [None] * len(keys)
        for shard, places, values in asked:
            for place, value in zip(places, values.result(scope.timeout), strict=True):
                late = value is LATER
                pending[place] = shard.begin_value(keys[place][1], scope.checkpoint) if late else Done(value)
        return pending

    def stored_keys(self, managers: list[int] | None = None) -> Iterator[tuple[AnyShard, bytes]]:
        """Yield all keys, or those of some managers, with the shard that holds each; a broadcast key is yielded
        once."""
        scope = self._scope
        shards = scope.used() if managers is None else [scope.open()[manager] for manager in managers]
        pending = [(shard, shard.begin("keys", scope.checkpoint)) for shard in shards]
        for shard, keys in [(shard, one.result(scope.timeout)) for shard, one in pending]:
            for key in keys:
                yield shard, key

    def put_all(self, placed: Iterable[tuple[int, bytes, Record]], flags: int) -> None:
        """Put records, given as (manager, key, record), in batches. A manager stores all records of a batch or none."""
        batches = self.empty()
        size = 0
        for manager, key, record in placed:
            batches[manager].append((key, record))
            size += record.size
            if size > AT_ONCE:
                self.send(batches, flags)
                batches, size = self.empty(), 0
        self.send(batches, flags)

    def empty(self) -> Placed:
        """Return an empty list for each manager."""
        return [[] for _ in self._scope.open()]

    def send(self, batches: Placed, flags: int) -> None:
        """Put records, with all managers at the same time."""
        pending = []
        for shard, records in zip(self._scope.open(), batches, strict=True):
            if records:
                if self._writers.guarded:
                    self._writers.allow(shard)
                pending.append(shard.begin_put_many(records, self._scope.checkpoint, flags))
        for one in pending:
            one.result(self._scope.timeout)

    def broadcast(self, key: bytes, record: Record) -> None:
        """Put a record with every manager. Raises DDictFullError if one has no room; then no manager stores it."""
        scope = self._scope
        shards = scope.open()
        for shard in shards:
            if self._writers.guarded:
                self._writers.allow(shard)
            usage = shard.begin("usage").result(scope.timeout)
            if record.size > usage["total"] - usage["used"]:
                raise DDictFullError(
                    f"{in_units(record.size)} do not fit into {shard.where}, of whose {in_units(usage['total'])} "
                    f"{in_units(usage['used'])} are used: no manager has stored the broadcast"
                )
        own = scope.place(key)
        if any(shard.local is None for shard in shards) and spread(
            shards, own, key, record, scope.checkpoint, BROADCAST, scope.timeout
        ):
            return
        pending = [
            shard.begin_put(key, record, scope.checkpoint, 0 if i == own else BROADCAST)
            for i, shard in enumerate(shards)
        ]
        for one in pending:
            one.result(scope.timeout)


class PutBatch:
    """Puts that are collected and sent together.

    Args:
        flags: of all records of the batch.
    """

    def __init__(self, scope: Scope, writers: Writers, bulk: Bulk, flags: int) -> None:
        self._scope, self._writers, self._bulk = scope, writers, bulk
        self.flags = flags
        self._records, self._size = bulk.empty(), 0

    def add(self, key: bytes, record: Record, flags: int) -> None:
        """Add a record, and send the batch if it is large. The caller may change the value afterwards."""
        self.check(flags)
        mine = self._records[self._scope.place(key)]
        self._size += record.size
        if self._size <= AT_ONCE:
            mine.append((key, record.copied()))
            return
        mine.append((key, record))
        self.send()

    def check(self, flags: int) -> None:
        """Raise DDictError if the flags of a put are not those of the batch."""
        if flags != self.flags:
            needed = "puts without persistence" if flags else "pput()"
            raise DDictError(f"this batch was started for {needed}: start_batch_put(persist=…)", "INVALID_OPERATION")

    def send(self) -> None:
        """Send the collected records and wait until they are stored. Raises DDictFutureCheckpointError."""
        records, self._records, self._size = self._records, self._bulk.empty(), 0
        for shard, some in zip(self._scope.open(), records, strict=True):
            if some:
                self._writers.refuse_future(shard)
        self._bulk.send(records, self.flags)
