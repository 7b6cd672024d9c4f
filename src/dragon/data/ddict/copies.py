"""One dictionary's contents put into another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dragon.data.ddict.bulk import AT_ONCE, Bulk
from dragon.data.ddict.scope import Scope
from dragon.data.ddict.shards import AnyShard
from dragon.data.ddict.writers import Writers
from dragon.shards.entries import places_of
from dragon.shards.records import Record, encode_value

__all__ = ["copy_all", "copy_shards", "same_shape"]


def same_shape(one: Scope, other: Scope) -> bool:
    """Whether two dictionaries have as many managers and checkpoints, so that everything has the same place in both."""
    return (one.count, one.options.working_set_size) == (other.count, other.options.working_set_size)


def copy_shards(scope: Scope, other: Scope, managers: Iterable[int]) -> None:
    """Have managers of a dictionary of the same shape hold all checkpoints that those of this one do, and nothing else;
    a broadcast is one there too."""
    for manager in managers:
        _copy_shard(scope, scope.open()[manager], other, other.open()[manager])


def copy_all(scope: Scope, other: Scope, writers: Writers) -> None:
    """Have a dictionary of another shape hold what is seen in this one's checkpoint, in its own checkpoint, and nothing
    else. `writers` are those of the other handle."""
    bulk, target = Bulk(scope, Writers(scope)), Bulk(other, writers)
    other.on_all("begin_anew", other.checkpoint)
    for shard in scope.used():
        by_flags: dict[int, list[bytes]] = {}
        for key, flags, _ in _flagged(scope, shard, scope.checkpoint):
            by_flags.setdefault(flags, []).append(key)
        for flags, keys in by_flags.items():
            target.put_all(_records_for(bulk, shard, keys, flags, (scope.count, other.count)), flags)


def _copy_shard(scope: Scope, shard: AnyShard, other: Scope, copy: AnyShard) -> None:
    reader = scope.copied()
    bulk = Bulk(reader, Writers(reader))
    oldest, newest, *_ = shard.state()
    copy.begin("begin_anew", oldest).result(other.timeout)
    before: set[bytes] = set()
    for checkpoint in range(oldest, newest + 1):
        by_flags: dict[int, list[bytes]] = {}
        seen = set()
        for key, flags, put_in in _flagged(scope, shard, checkpoint):
            seen.add(key)
            if checkpoint in (put_in, oldest):
                by_flags.setdefault(flags, []).append(key)
        copy.begin("advance", checkpoint).result(other.timeout)
        reader.checkpoint = checkpoint
        for flags, keys in by_flags.items():
            for records in _of_some_size(bulk.present((shard, key) for key in keys)):
                copy.begin_put_many(records, checkpoint, flags).result(other.timeout)
        for key in before - seen:
            copy.pop(key, checkpoint)
        before = seen


def _flagged(scope: Scope, shard: AnyShard, checkpoint: int) -> list[tuple[bytes, int, int]]:
    return list(shard.begin("flagged_keys", checkpoint).result(scope.timeout))


def _records_for(
    bulk: Bulk, shard: AnyShard, keys: list[bytes], flags: int, managers: tuple[int, int]
) -> Iterator[tuple[int, bytes, Record]]:
    """Of some of a shard's keys the records, each with every manager that is to hold it; `managers` are how many this
    dictionary and the other have."""
    for key, value in bulk.present((shard, key) for key in keys):
        record = encode_value(value)
        for place in places_of(key, flags, shard.settings.manager, *managers):
            yield place, key, record


def _of_some_size(found: Iterable[tuple[bytes, Any]]) -> Iterator[list[tuple[bytes, Record]]]:
    """Keys and values as records, as many together as are sent together."""
    records: list[tuple[bytes, Record]] = []
    size = 0
    for key, value in found:
        record = encode_value(value)
        records.append((key, record))
        size += record.size
        if size > AT_ONCE:
            yield records
            records, size = [], 0
    if records:
        yield records
