"""The operations on a shard that processes of other nodes may request, and their replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from dragon import _core
from dragon.shards.entries import Stored
from dragon.shards.records import Record, bytes_in
from dragon.shards.shard import MISSING, Shard

__all__ = ["NOTHING", "OPERATIONS", "WRITES", "Answer", "Operation", "read_here"]

NOTHING = "nothing"  # an operation without effect, whose reply says that a replica has done all earlier ones

_SMALL = 256 * 1024  # bytes of values, at most, that are sent without a separate thread


class Answer(Protocol):
    """A function that is called once, with the value and buffers of the reply.

    The receiver gets the buffers as bytes objects if `as_bytes`, otherwise as writable memory.
    """

    def __call__(self, value: Any, buffers: list[Any], /, *, as_bytes: bool = False) -> None: ...


Operation = Callable[[Shard, list[Any], list[Any], Answer], None]


def _read(shard: Shard, arguments: list[Any], buffers: list[Any], answer: Answer) -> None:
    key, checkpoint = arguments
    pinned = shard.pin(key, checkpoint)
    if pinned is None:
        answer(_missing(shard), [])
        return
    owner, stored = pinned
    # Sent from the shard's own memory, which stays unchanged until it is sent.
    blobs = [_core.Pinned(blob, owner) for blob in _blobs(stored)]
    answer(_described(stored), blobs, as_bytes=bytes_in(stored.head, 0) >= 0)


def _missing(shard: Shard) -> bool | None:
    """Return the reply for a missing key: False if it may be with another manager than its hash says, else None.

    So the client needs no other request to find that out.
    """
    return False if shard.is_chosen else None


def read_here(shard: Shard, operation: str, arguments: list[Any], answer: Answer) -> bool:
    """Perform an operation that does not wait and takes little time. Returns whether it was one and was done."""
    if operation == "read":
        return _read_small(shard, arguments, answer)
    if operation == "read_many":
        _read_many(shard, arguments, [], answer)
        return True
    return False


def _read_small(shard: Shard, arguments: list[Any], answer: Answer) -> bool:
    """Do the same as _read(), unless the value is large. Returns whether it was done."""
    key, checkpoint = arguments

    def take(stored: Stored) -> bool:
        if stored.size > _SMALL:
            return False
        answer(_described(stored), _blobs(stored))
        return True

    found = shard.read(key, checkpoint, take)
    if found is MISSING:
        answer(_missing(shard), [])
    return found is not False


def _read_many(shard: Shard, arguments: list[Any], buffers: list[Any], answer: Answer) -> None:
    """Reply with (record, number of blobs) for each key, None for a missing key, and False for a value that is too
    large for this reply and must be requested alone."""
    keys, checkpoint = arguments

    def take(found: list[Stored | None]) -> None:
        room = _SMALL
        entries: list[Any] = []
        blobs: list[Any] = []
        for stored in found:
            size = 0 if stored is None else stored.size
            if stored is None:
                entries.append(None)
            elif size > room:
                entries.append(False)
            else:
                room -= size
                entries.append((_described(stored), len(stored.blobs)))
                blobs += _blobs(stored)
        answer(entries, blobs)

    shard.read_many(keys, checkpoint, take)


def _described(stored: Stored) -> Any:
    return stored.flags, stored.checkpoint, stored.head


def _blobs(stored: Stored) -> list[Any]:
    return [blob[0] if len(blob) == 1 else b"".join(blob) for blob in stored.blobs]


def _put(shard: Shard, arguments: list[Any], buffers: list[Any], answer: Answer) -> None:
    key, head, checkpoint, flags = arguments
    shard.put(key, Record(head, buffers), checkpoint, flags)
    answer(None, [])


def _put_new(shard: Shard, arguments: list[Any], buffers: list[Any], answer: Answer) -> None:
    key, head, checkpoint = arguments
    answer(shard.put_new(key, Record(head, buffers), checkpoint), [])


def _put_many(shard: Shard, arguments: list[Any], buffers: list[Any], answer: Answer) -> None:
    records, checkpoint, flags = arguments
    start, several = 0, []
    for key, head, count in records:
        several.append((key, Record(head, buffers[start : start + count])))
        start += count
    shard.put_many(several, checkpoint, flags)
    answer(None, [])


def _pop(shard: Shard, arguments: list[Any], buffers: list[Any], answer: Answer) -> None:
    key, checkpoint, wanted = arguments
    if not wanted:
        answer(_missing(shard) if shard.pop(key, checkpoint) is MISSING else True, [])
        return
    found = shard.pop(key, checkpoint, lambda stored: (_described(stored), [bytes(b) for b in _blobs(stored)]))
    if found is MISSING:
        answer(_missing(shard), [])
    else:
        answer(*found)


def _contains(shard: Shard, arguments: list[Any], buffers: list[Any], answer: Answer) -> None:
    answer(True if shard.contains(*arguments) else _missing(shard), [])


def _state(shard: Shard, arguments: list[Any], buffers: list[Any], answer: Answer) -> None:
    answer((shard.oldest, shard.newest, shard.is_frozen, shard.is_chosen), [])


def _nothing(shard: Shard, arguments: list[Any], buffers: list[Any], answer: Answer) -> None:
    answer(None, [])


def _plain(method: str) -> Operation:
    def do(shard: Shard, arguments: list[Any], buffers: list[Any], answer: Answer) -> None:
        answer(getattr(shard, method)(*arguments), [])

    return do


OPERATIONS: dict[str, Operation] = {
    "read": _read,
    "read_many": _read_many,
    "put": _put,
    "put_many": _put_many,
    "put_new": _put_new,
    "pop": _pop,
    "contains": _contains,
    "state": _state,
    NOTHING: _nothing,
    **{
        name: _plain(name)
        for name in (
            "has_had",
            "holds",
            "keys",
            "flagged_keys",
            "part",
            "size",
            "sizes",
            "count",
            "add",
            "clear",
            "advance",
            "begin_anew",
            "freeze",
            "note_chosen",
            "usage",
            "note_writer",
            "writers",
            "behind",
        )
    },
}

WRITES = frozenset(
    {
        "put",
        "put_many",
        "put_new",
        "pop",
        "add",
        "clear",
        "advance",
        "begin_anew",
        "freeze",
        "note_chosen",
        "note_writer",
    }
)
