"""The operations on a shard that processes of other nodes may request, with their requests and replies."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

from dragon import _core
from dragon.infrastructure.start_request import Name
from dragon.infrastructure.structs import msgspec
from dragon.shards.records import Record, bytes_in
from dragon.shards.shard import MISSING, Shard, Stored

NOTHING = "nothing"  # an operation without effect, whose reply says that a replica has done all earlier ones

_AT_ONCE = 256 * 1024  # bytes of values, at most, in the reply to a request for several

# The session (a unique number of a thread), the number of the write, and the last write whose answer it has received.
Identity = tuple[bytes, int, int]
# An exception by the name of its class and its text.
Error = tuple[str, str]


class Tag(NamedTuple):
    """A message about a shard: by which decision its sender knew the replicas, and the number of the transfer, or 0."""

    epoch: int
    fill: int = 0


class Request(msgspec.Struct, array_like=True, tag=0):
    """A request for an operation, whose reply goes to `inbox`, a channel of the process `pid`.

    A write with an identity is done once, however often it is requested. A read of the `newest` returns every write
    that had returned before it began. `tag` is that of a message between replicas.
    """

    number: int
    inbox: Name
    pid: int
    dictionary: str
    manager: int
    operation: str
    arguments: list[Any]
    identity: Identity | None = None
    newest: bool = False
    tag: Tag | None = None


class Reply(msgspec.Struct, array_like=True, tag=1):
    """The reply to the request of that number. With `sizes` its buffers follow in pieces, as bytes or memory."""

    number: int
    value: Any = None
    error: Error | None = None
    sizes: list[int] = []
    as_bytes: bool = False


class Piece(msgspec.Struct, array_like=True, tag=2):
    """Goes with the next piece of a reply's buffers."""

    number: int


class Result(NamedTuple):
    """The value and the buffers that an operation returns."""

    value: object = None
    buffers: list[Any] = []
    as_bytes: bool = False


Operation = Callable[[Shard, list[Any], list[Any]], Result]


def _value(shard: Shard, arguments: list[Any], buffers: list[Any]) -> Result:
    pinned = shard.pin(*arguments)
    if pinned is None:
        return _missing(shard)
    owner, stored = pinned
    # Sent from the shard's own memory, which stays unchanged until it is sent.
    blobs = [_core.Pinned(blob, owner) for blob in _blobs(stored)]
    return Result(stored.head, blobs, bytes_in(stored.head, 0) >= 0)


def _missing(shard: Shard) -> Result:
    """Return the reply for a missing key: False if it may be with another manager than its hash says, else None."""
    return Result(False if shard.is_chosen else None)


def _values(shard: Shard, arguments: list[Any], buffers: list[Any]) -> Result:
    """Reply with (head, number of blobs) for each key, None for a missing one, and False for too large a value."""

    def take(found: list[Stored | None]) -> Result:
        room = _AT_ONCE
        entries: list[Any] = []
        blobs: list[Any] = []
        for stored in found:
            if stored is None or stored.size > room:
                entries.append(None if stored is None else False)
            else:
                room -= stored.size
                entries.append((stored.head, len(stored.blobs)))
                blobs += map(bytes, _blobs(stored))
        return Result(entries, blobs)

    keys, checkpoint = arguments
    return shard.read_many(keys, checkpoint, take)


def _blobs(stored: Stored) -> list[Any]:
    return [blob[0] if len(blob) == 1 else b"".join(blob) for blob in stored.blobs]


def _storing(method: str) -> Operation:
    def do(shard: Shard, arguments: list[Any], buffers: list[Any]) -> Result:
        key, head, *more = arguments
        return Result(getattr(shard, method)(key, Record(head, buffers), *more))

    return do


def _put_many(shard: Shard, arguments: list[Any], buffers: list[Any]) -> Result:
    records, *more = arguments
    blobs = iter(buffers)
    shard.put_many([(key, Record(head, list(islice(blobs, count)))) for key, head, count in records], *more)
    return Result()


def _pop(shard: Shard, arguments: list[Any], buffers: list[Any]) -> Result:
    return _missing(shard) if shard.pop(*arguments) is MISSING else Result(True)


def _take(shard: Shard, arguments: list[Any], buffers: list[Any]) -> Result:
    key, checkpoint = arguments
    found = shard.pop(key, checkpoint, lambda stored: Result(stored.head, [bytes(blob) for blob in _blobs(stored)]))
    return _missing(shard) if found is MISSING else found


def _contains(shard: Shard, arguments: list[Any], buffers: list[Any]) -> Result:
    return Result(True) if shard.contains(*arguments) else _missing(shard)


def _plain(method: str) -> Operation:
    return lambda shard, arguments, buffers: Result(getattr(shard, method)(*arguments))


_READS = ("has_had", "holds", "keys", "flagged_keys", "part", "size", "sizes", "count")
_STATE = ("state", "usage", "writers", "behind")
_CHANGES = ("add", "clear", "advance", "begin_anew", "freeze", "note_chosen", "note_writer")

OPERATIONS: dict[str, Operation] = {
    "value": _value,
    "values": _values,
    "put": _storing("put"),
    "put_many": _put_many,
    "put_new": _storing("put_new"),
    "pop": _pop,
    "take": _take,
    "contains": _contains,
    NOTHING: lambda shard, arguments, buffers: Result(),
    **{name: _plain(name) for name in (*_READS, *_STATE, *_CHANGES)},
}

WRITES = frozenset({"put", "put_many", "put_new", "pop", "take", *_CHANGES})
