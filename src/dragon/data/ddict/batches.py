"""Many keys at a time: asked for, or put, together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from dragon.data.ddict.checkpoints import Checkpoints
from dragon.data.ddict.shards import LATER, AnyShard, Done, Pending
from dragon.infrastructure.ddict_errors import DDictError, DDictFullError, DDictKeyError
from dragon.shards.entries import BROADCAST, PERSISTENT, places_of
from dragon.shards.records import Record, encode_value
from dragon.shards.shard import MISSING

if TYPE_CHECKING:
    from _typeshed import SupportsKeysAndGetItem

__all__ = ["Batches"]

_AT_ONCE = 64 * 2**20  # bytes of a batch that are sent together
_TOGETHER = 64  # keys that are asked for together


class Batches(Checkpoints):
    """What of a handle concerns several keys, or several managers, at a time."""

    def get_many(self, keys: Iterable[Any]) -> list[Any]:
        """The values of several keys, asked for together. Raises DDictKeyError for the first that is missing."""
        wanted = [(key, self._key(key)) for key in keys]
        found = {key: self._loaded(value) for key, value in self._present((self._shard(e), e) for _, e in wanted)}
        for key, encoded in wanted:
            if encoded not in found:
                found[encoded] = self._loaded(self._value(self._shard(encoded), encoded))
            if found[encoded] is MISSING:
                raise self._missing(key, self._shard(encoded))
        return [found[encoded] for _, encoded in wanted]

    def put_many(self, items: SupportsKeysAndGetItem[Any, Any] | Iterable[tuple[Any, Any]]) -> None:
        """Put several values, sent together. Of those that are (64 MiB at a time) a manager stores all or none.

        `items` is a mapping, something else with keys() and items by key, or pairs.
        """
        encoded = ((self._key(key), self._record(value)) for key, value in _pairs(items))
        self._put_all(((self._place(key), key, record) for key, record in encoded), 0)

    def _put_all(self, placed: Iterable[tuple[int, bytes, Record]], flags: int) -> None:
        """Put records with the managers that are said."""
        batches = self._empty_batches()
        size = 0
        for manager, key, record in placed:
            batches[manager].append((key, record))
            size += record.size
            if size > _AT_ONCE:
                self._send(batches, flags)
                batches, size = self._empty_batches(), 0
        self._send(batches, flags)

    def _copy_to(self, other: Batches, managers: Iterable[int] | None = None) -> None:
        """Have another dictionary, or some of its managers, hold what this one does, and nothing else: a broadcast is
        one there too. With as many managers and checkpoints everything goes to the same places; otherwise what is seen
        here goes to the other handle's checkpoint."""
        chosen = self._is_chosen(ask=True)
        if (self._count, self._options.working_set_size) == (other._count, other._options.working_set_size):
            shards, copies = self._open_shards(), other._open_shards()
            for manager in range(self._count) if managers is None else managers:
                self._copy_shard(shards[manager], copies[manager])
        else:
            other._on_all("begin_anew", other._checkpoint)
            for shard in self._all():
                by_flags: dict[int, list[bytes]] = {}
                for key, flags, _ in self._flagged(shard, self._checkpoint):
                    by_flags.setdefault(flags, []).append(key)
                for flags, keys in by_flags.items():
                    other._put_all(self._records_for(other._count, shard, keys, flags), flags)
        if chosen:
            other._note_chosen()

    def _copy_shard(self, shard: AnyShard, copy: AnyShard) -> None:
        """Have a shard of another dictionary hold all checkpoints of one of this one's."""
        reader = self._again()
        oldest, newest, *_ = shard.state()
        copy.begin("begin_anew", oldest).result(self._timeout)
        before: set[bytes] = set()
        for checkpoint in range(oldest, newest + 1):
            by_flags: dict[int, list[bytes]] = {}
            seen = set()
            for key, flags, put_in in self._flagged(shard, checkpoint):
                seen.add(key)
                if checkpoint in (put_in, oldest):
                    by_flags.setdefault(flags, []).append(key)
            copy.begin("advance", checkpoint).result(self._timeout)
            reader._checkpoint = checkpoint
            for flags, keys in by_flags.items():
                for records in _of_some_size(reader._present((shard, key) for key in keys)):
                    copy.begin_put_many(records, checkpoint, flags).result(self._timeout)
            for key in before - seen:
                copy.pop(key, checkpoint)
            before = seen

    def _flagged(self, shard: AnyShard, checkpoint: int) -> list[tuple[bytes, int, int]]:
        return list(shard.begin("flagged_keys", checkpoint).result(self._timeout))

    def _records_for(
        self, managers: int, shard: AnyShard, keys: list[bytes], flags: int
    ) -> Iterator[tuple[int, bytes, Record]]:
        """Of some of a shard's keys the records, each with every one of so many managers that is to hold it."""
        for key, value in self._present((shard, key) for key in keys):
            record = encode_value(value)
            for place in places_of(key, flags, shard.settings.manager, self._count, managers):
                yield place, key, record

    def _empty_batches(self) -> list[list[tuple[bytes, Record]]]:
        return [[] for _ in self._open_shards()]

    def begin_get(self, key: Any) -> Pending:
        """Ask for a value, which result() of what this returns gives to the same thread."""
        return _Present(self, key, self._begin_get(key))

    def _begin_get(self, key: Any) -> Pending:
        encoded = self._key(key)
        return self._shard(encoded).begin_value(encoded, self._checkpoint)

    def begin_put(self, key: Any, value: Any) -> Pending:
        """Send a value; result() of what this returns waits until it is stored."""
        encoded = self._key(key)
        shard = self._shard(encoded)
        if self._guarded:
            self._may_write(shard)
        return shard.begin_put(encoded, self._record(value), self._checkpoint)

    def begin_put_new(self, key: Any, value: Any) -> Pending:
        """Send a value unless the key is there; result() of what this returns says whether it was put."""
        encoded = self._key(key)
        shard = self._shard(encoded)
        if self._guarded:
            self._may_write(shard)
        return shard.begin_put_new(encoded, self._record(value), self._checkpoint)

    def _send(self, batches: list[list[tuple[bytes, Record]]], flags: int) -> None:
        pending = []
        for shard, records in zip(self._open_shards(), batches, strict=True):
            if records:
                if self._guarded:
                    self._may_write(shard)
                pending.append(shard.begin_put_many(records, self._checkpoint, flags))
        for one in pending:
            one.result(self._timeout)

    def start_batch_put(self, persist: bool = False) -> None:
        """Collect puts from here to end_batch_put(), and send many at a time."""
        if self._batch is not None:
            raise DDictError("a batch has been started already", "INVALID_OPERATION")
        self._refuse_if_read_only()
        self._batch = self._empty_batches()
        self._batch_flags = PERSISTENT if persist else 0

    def end_batch_put(self) -> None:
        """Send what is left of the batch; it is stored when this returns. Raises DDictError without a batch, and
        DDictFutureCheckpointError where its checkpoint cannot be written yet."""
        if self._batch is None:
            raise DDictError("no batch was started", "INVALID_OPERATION")
        batch, self._batch, self._batch_size = self._batch, None, 0
        self._send_batch(batch)

    def _send_batch(self, batch: list[list[tuple[bytes, Record]]]) -> None:
        for shard, records in zip(self._open_shards(), batch, strict=True):
            if records:
                self._no_future(shard)
        self._send(batch, self._batch_flags)

    def _add_to_batch(self, encoded: bytes, record: Record) -> None:
        assert self._batch is not None
        mine = self._batch[self._place(encoded)]
        self._batch_size += record.size
        if self._batch_size <= _AT_ONCE:
            mine.append((encoded, record.copied()))  # the caller may change the value from now on
            return
        mine.append((encoded, record))
        batch, self._batch, self._batch_size = self._batch, self._empty_batches(), 0
        self._send_batch(batch)

    def bput(self, key: Any, value: Any) -> None:
        """Put a value into every manager, so that bget() finds it on the reader's own node. A value that does not fit
        everywhere is put nowhere. Within a batch it is put at once."""
        for shard in self._open_shards():
            self._no_future(shard)
        encoded, record = self._key(key), self._record(value)
        own = self._place(encoded)
        shards = self._open_shards()
        for shard in shards:
            if self._guarded:
                self._may_write(shard)
            usage = shard.begin("usage").result(self._timeout)
            if record.size > usage["total"] - usage["used"]:
                raise DDictFullError(
                    f"{record.size} bytes do not fit into {shard.where}, of whose {usage['total']} bytes "
                    f"{usage['used']} are used: the broadcast is put nowhere"
                )
        pending = [
            shard.begin_put(encoded, record, self._checkpoint, 0 if i == own else BROADCAST)
            for i, shard in enumerate(shards)
        ]
        for one in pending:
            one.result(self._timeout)

    def bget(self, key: Any) -> Any:
        """The value of a broadcast put, from this process's main manager if that has it."""
        encoded = self._key(key)
        shard = self._open_shards()[self.main_manager]
        value = self._loaded(shard.value(encoded, self._checkpoint))
        if value is MISSING:
            # With one manager a broadcast is an ordinary put, and may have been restored into more.
            value = self._loaded(self._shard(encoded).value(encoded, self._checkpoint))
        if value is MISSING:
            raise self._missing(key, shard)
        return value

    def _present(self, keys: Iterable[tuple[AnyShard, bytes]]) -> Iterator[tuple[bytes, Any]]:
        """Keys of shards with their values as they were put, asked for together; those that are gone are left out."""
        wanted = iter(keys)
        while together := list(islice(wanted, _TOGETHER)):
            for (shard, key), one in zip(together, self._ask_others(together), strict=True):
                value = (one or shard.begin_value(key, self._checkpoint)).result(self._timeout)
                if value is not MISSING:
                    yield key, value

    def _ask_others(self, keys: list[tuple[AnyShard, bytes]]) -> list[Pending | None]:
        """Ask other nodes for values; None for one of this node, which is best read when it is wanted."""
        far: dict[AnyShard, list[int]] = {}
        for place, (shard, _) in enumerate(keys):
            if shard.local is None:
                far.setdefault(shard, []).append(place)
        asked = [
            (shard, places, shard.begin_values([keys[i][1] for i in places], self._checkpoint))
            for shard, places in far.items()
        ]
        pending: list[Pending | None] = [None] * len(keys)
        for shard, places, values in asked:
            for place, value in zip(places, values.result(self._timeout), strict=True):
                late = value is LATER
                pending[place] = shard.begin_value(keys[place][1], self._checkpoint) if late else Done(value)
        return pending

    def _encoded_keys(self, managers: list[int] | None = None) -> Iterator[tuple[AnyShard, bytes]]:
        """All keys, or those of some managers, with the shard that holds each; a broadcast's once."""
        shards = self._all() if managers is None else [self._open_shards()[manager] for manager in managers]
        pending = [(shard, shard.begin("keys", self._checkpoint)) for shard in shards]
        for shard, keys in [(shard, one.result(self._timeout)) for shard, one in pending]:
            for key in keys:
                yield shard, key

    def _missing(self, key: Any, shard: AnyShard) -> DDictKeyError:
        return DDictKeyError(f"no key {key!r} in checkpoint {self._checkpoint} of {shard.where}")


def _of_some_size(found: Iterable[tuple[bytes, Any]]) -> Iterator[list[tuple[bytes, Record]]]:
    """Keys and values as records, as many together as are sent together."""
    records: list[tuple[bytes, Record]] = []
    size = 0
    for key, value in found:
        record = encode_value(value)
        records.append((key, record))
        size += record.size
        if size > _AT_ONCE:
            yield records
            records, size = [], 0
    if records:
        yield records


def _pairs(items: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(items, Mapping):
        return items.items()
    if not hasattr(items, "keys"):
        return items  # type: ignore[no-any-return]
    keys = items.keys()
    return ((key, items[key]) for key in keys)


class _Present(Pending):
    """A value that was asked for."""

    def __init__(self, ddict: Batches, key: Any, pending: Pending) -> None:
        self._ddict, self._key, self._pending = ddict, key, pending

    def result(self, timeout: float | None = None) -> Any:
        ddict, value = self._ddict, self._pending.result(timeout)
        if value is MISSING:
            encoded = ddict._key(self._key)
            shard = ddict._shard(encoded)
            value = ddict._value(shard, encoded)
            if value is MISSING:
                raise ddict._missing(self._key, shard)
        return ddict._loaded(value)
