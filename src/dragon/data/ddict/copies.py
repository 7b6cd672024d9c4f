"""Copies the contents of one dictionary to another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from dragon.data.ddict.bulk import AT_ONCE, Bulk
from dragon.data.ddict.creation import moment
from dragon.data.ddict.scope import Scope
from dragon.data.ddict.shards import AnyShard
from dragon.data.ddict.writers import Writers
from dragon.shards.entries import places_of
from dragon.shards.records import Record, encode_value

__all__ = ["copy_all", "copy_shards", "same_shape"]


def same_shape(one: Scope, other: Scope) -> bool:
    """Return whether two dictionaries have equal numbers of managers and checkpoints, so that keys are placed
    equally."""
    return (one.count, one.options.working_set_size) == (other.count, other.options.working_set_size)


def copy_shards(scope: Scope, other: Scope, managers: Iterable[int]) -> None:
    """Replace the contents of managers of `other`, a dictionary of the same shape, by all checkpoints of the same
    managers of this one. Broadcast keys stay broadcast."""
    since = moment(other.options)
    for manager in managers:
        _copy_shard(scope, scope.open()[manager], other, other.open()[manager], since)


def copy_all(scope: Scope, other: Scope, writers: Writers) -> None:
    """Replace the contents of `other`, a dictionary of another shape, by this one's current checkpoint.

    The contents become the current checkpoint of `other`. `writers` belong to the handle of `other`.
    """
    bulk, target = Bulk(scope, Writers(scope)), Bulk(other, writers)
    other.on_all("begin_anew", other.checkpoint, moment(other.options))
    for shard in scope.used():
        by_flags: dict[int, list[bytes]] = {}
        for key, flags, _ in _flagged(scope, shard, scope.checkpoint):
            by_flags.setdefault(flags, []).append(key)
        for flags, keys in by_flags.items():
            target.put_all(_records_for(bulk, shard, keys, flags, (scope.count, other.count)), flags)


def _copy_shard(scope: Scope, shard: AnyShard, other: Scope, copy: AnyShard, since: int) -> None:
    reader = scope.copied()
    bulk = Bulk(reader, Writers(reader))
    oldest, newest, *_ = shard.state()
    copy.begin("begin_anew", oldest, since).result(other.timeout)
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
    """Yield records of some of a shard's keys as (manager that is to hold it, key, record).

    `managers` are the numbers of managers of this dictionary and of the other one.
    """
    for key, value in bulk.present((shard, key) for key in keys):
        record = encode_value(value)
        for place in places_of(key, flags, shard.settings.manager, *managers):
            yield place, key, record


def _of_some_size(found: Iterable[tuple[bytes, Any]]) -> Iterator[list[tuple[bytes, Record]]]:
    """Yield keys and values as lists of records, each about as large as one request."""
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
