"""The shards of a dictionary as a client uses them: those of its own node directly, others through the agents."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Self

from dragon import _core
from dragon.data.ddict.conduit import Conduit, Memory, conduit_to
from dragon.infrastructure.ddict_errors import DDictTimeoutError
from dragon.runtime.agent_client import ask
from dragon.runtime.folder import this_process
from dragon.runtime.handle import Lock, Words
from dragon.runtime.protocol.shards import Persist
from dragon.runtime.run import this_run
from dragon.shards.entries import Settings, Stored
from dragon.shards.records import Record, decode_value
from dragon.shards.shard import MISSING, Shard

__all__ = ["LATER", "AnyShard", "Done", "LocalShard", "Note", "Pending", "RemoteShard", "open_shard"]

# A function that is called with the size in bytes of a value in its encoded form.
Note = Callable[[int], None]

_GET, _CONTAINS, _PUT, _PUT_NEW, _POP, _SPREAD = (
    _core.OPERATIONS[f"Shard.{name}"] for name in ("get", "contains", "put", "put_new", "pop", "spread")
)
_MISSING, _DONE, _ELSEWHERE, _NO_ANSWER = range(4)  # states of operate_on_shard()

LATER: Any = type("Later", (), {"__repr__": lambda self: "LATER"})()
"""In place of a value that is too large to be sent together with others."""


def open_shard(number: str, settings: Settings) -> AnyShard:
    """Open a shard of a dictionary. Raises DestroyedError if it was destroyed, NodeLostError if its node is lost."""
    if settings.node == this_run().node:
        return LocalShard(settings, Words._attached(settings.words), Lock._attached(settings.lock), number)
    return RemoteShard(number, settings)


class Pending:
    """The pending result of an operation."""

    def result(self, timeout: float | None = None) -> Any:
        """Wait at most `timeout` seconds for the result and return it. Raises the operation's exception,
        DDictTimeoutError."""
        raise NotImplementedError


class Done(Pending):
    """The result of an operation that is complete already."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self, timeout: float | None = None) -> Any:
        """Return the value immediately."""
        return self._value


class LocalShard(Shard):
    """A shard on this node."""

    told_chosen = False  # used by RemoteShard only: a local shard reads it from its words

    def __init__(self, settings: Settings, words: Words, lock: Lock, number: str) -> None:
        super().__init__(settings, words, lock)
        self.number = number
        self.retire = self._persist_all

    def within(self, timeout: float | None) -> LocalShard:
        """Return the same shard with a timeout in seconds, after which operations raise DDictTimeoutError."""
        limited = LocalShard(self.settings, self.words, self._lock, self.number)
        limited.timeout = timeout
        return limited

    def value(self, key: bytes, checkpoint: int, note: Note | None = None) -> Any:
        """Return the value of a key, or MISSING. `note` is called with the size of the value in bytes.

        The buffers of a value in a frozen shard are the shard's memory, and must only be read.
        """
        head = self.head(key, checkpoint)
        if isinstance(head, bytes):
            if note is not None:
                note(len(head))
            return decode_value(head, _no_blob)
        if head is None:
            return MISSING
        if self.is_frozen:
            pinned = self.pin(key, checkpoint)
            if pinned is None:
                return MISSING
            owner, stored = pinned
            if note is not None:
                note(stored.size)
            return _value_of(stored, owner)
        return self.read(key, checkpoint, _value_of if note is None else partial(_noted_copy, note))

    def take(self, key: bytes, checkpoint: int, note: Note | None = None) -> Any:
        """Delete a key and return its value, or MISSING."""
        return self.pop(key, checkpoint, _value_of if note is None else partial(_noted_copy, note))

    def begin_value(self, key: bytes, checkpoint: int, note: Note | None = None) -> Pending:
        """Begin value()."""
        return Done(self.value(key, checkpoint, note))

    def begin_values(self, keys: list[bytes], checkpoint: int, notes: list[Note] | None = None) -> Pending:
        """Begin value() of several keys."""
        return Done([self.value(key, checkpoint, notes[i] if notes else None) for i, key in enumerate(keys)])

    def begin_put(self, key: bytes, record: Record, checkpoint: int, flags: int = 0) -> Pending:
        """Begin put()."""
        self.put(key, record, checkpoint, flags)
        return Done(None)

    def begin_put_new(self, key: bytes, record: Record, checkpoint: int) -> Pending:
        """Begin put_new()."""
        return Done(self.put_new(key, record, checkpoint))

    def begin_put_many(self, records: list[tuple[bytes, Record]], checkpoint: int, flags: int = 0) -> Pending:
        """Begin put_many()."""
        self.put_many(records, checkpoint, flags)
        return Done(None)

    def begin(self, method: str, *arguments: Any) -> Pending:
        """Begin any operation with plain arguments."""
        return Done(getattr(self, method)(*arguments))

    @property
    def local(self) -> LocalShard | None:
        """The part of the shard that is on this node: the shard itself."""
        return self

    def changing_words(self) -> Words | None:
        """Return words of which the first changes with every change."""
        return self.words

    def home(self) -> int:
        """Return the shard's node."""
        return self.settings.node

    def holders(self) -> list[int]:
        """Return the nodes that hold the shard."""
        return [self.home()]

    def state(self) -> tuple[int, int, bool, bool]:
        """Return the oldest and the newest checkpoint, whether the shard is frozen, and whether keys may be with other
        managers than their hashes say."""
        self._check()
        return self.oldest, self.newest, self.is_frozen, self.is_chosen

    def _persist_all(self, checkpoints: list[int]) -> None:
        for checkpoint in checkpoints:
            ask(Persist(self.settings.node, self.number, self.settings.manager, checkpoint))


def _noted_copy(note: Note, stored: Stored) -> Any:
    note(stored.size)
    return _value_of(stored)


def _value_of(stored: Stored, owner: Any = None) -> Any:
    """Return the value of a record, with a copy of its memory, or with the record's memory if `owner` keeps
    that alive."""
    if not stored.blobs:
        return decode_value(stored.head, _no_blob)

    def blob(i: int, as_bytes: bool) -> Any:
        pieces = stored.blobs[i]
        if owner is not None and len(pieces) == 1 and not as_bytes:
            return _core.Pinned(pieces[0], owner)
        size = sum(len(piece) for piece in pieces)
        memory = _core.BytesInPieces(size) if as_bytes else Memory(size)
        for piece in pieces:
            memory.add(piece)
        return memory.whole()

    return decode_value(stored.head, blob)


def _no_blob(i: int, as_bytes: bool) -> Any:
    raise ValueError("a record is damaged: it refers to memory that it does not have")


class _Asked(Pending):
    """The pending reply of another node, which only the requesting thread can receive."""

    def __init__(self, conduit: Conduit, number: int, change: Any) -> None:
        self._conduit = conduit
        self._number = number
        self._change = change

    def result(self, timeout: float | None = None) -> Any:
        deadline = None if timeout is None else time.monotonic() + timeout
        return self._change(*self._conduit.receive(self._number, deadline))


class RemoteShard:
    """A shard on another node. It has the methods of LocalShard."""

    def __init__(self, number: str, settings: Settings) -> None:
        self.number = number
        self.settings = settings
        self.timeout: float | None = None
        self.told_chosen = False  # whether a reply said that keys may be with other managers than their hashes say
        self._words: Words | None = None

    def within(self, timeout: float | None) -> Self:
        """Return the same shard with a timeout in seconds, after which operations raise DDictTimeoutError."""
        limited = copy.copy(self)
        limited.timeout = timeout
        return limited

    @property
    def where(self) -> str:
        """The name of the shard in messages."""
        return f"manager {self.settings.manager} on node {self.settings.node}"

    def close(self) -> None:
        """Close the shard's memory in this process."""
        if self._words is not None:
            self._words._close()

    def _begin(self, operation: str, *arguments: Any, buffers: list[Any] | None = None, change: Any = None) -> Pending:
        return self._begin_at(self.settings.node, operation, arguments, buffers, change)

    def _begin_at(
        self,
        node: int,
        operation: str,
        arguments: tuple[Any, ...],
        buffers: list[Any] | None,
        change: Any,
        identity: Any = None,
    ) -> Pending:
        conduit = conduit_to(node, self.timeout)
        number = conduit.send(self.number, self.settings.manager, operation, arguments, buffers or [], identity)
        return _Asked(conduit, number, change or _only_value)

    def begin(self, method: str, *arguments: Any) -> Pending:
        """Begin any operation with plain arguments."""
        return self._begin(method, *arguments)

    def _at_once(self, what: int, key: bytes, checkpoint: int, flags: int, record: Record | None) -> tuple[int, Any]:
        """Have the wire of the shard's node perform an operation. Returns _DONE and the result, _MISSING if there is no
        such key, or _ELSEWHERE if the wire does not do it: for large values, or as it would have to wait."""
        if self.settings.holders:
            return _ELSEWHERE, None
        state, value = _core.operate_on_shard(what, self.settings.words, key, record, checkpoint, flags, self.timeout)
        if state == _NO_ANSWER:
            raise DDictTimeoutError(f"node {self.settings.node} did not answer in time; a write may still be done")
        if state == _MISSING:
            self.told_chosen = self.told_chosen or value
        return state, value

    def value(self, key: bytes, checkpoint: int, note: Note | None = None) -> Any:
        """Return the value of a key, or MISSING. `note` is called with the size of the value in bytes."""
        state, found = self._at_once(_GET, key, checkpoint, 0, None)
        if state == _ELSEWHERE:
            return self.begin_value(key, checkpoint, note).result(self.timeout)
        return _decoded(note, *found) if state == _DONE else MISSING

    def begin_value(self, key: bytes, checkpoint: int, note: Note | None = None) -> Pending:
        """Begin value()."""
        return self._begin("read", key, checkpoint, change=partial(self._read_value, note))

    def _read_value(self, note: Note | None, value: Any, buffers: list[Any]) -> Any:
        return _decoded(note, value[2], buffers) if self._is_there(value) else MISSING

    def _is_there(self, value: Any) -> bool:
        """Return whether a reply is one of a key that exists."""
        self.told_chosen = self.told_chosen or value is False
        return value is not None and value is not False

    def begin_values(self, keys: list[bytes], checkpoint: int, notes: list[Note] | None = None) -> Pending:
        """Begin value() of several keys with one request; the result has LATER for those that need a request of their
        own."""
        return self._begin("read_many", keys, checkpoint, change=partial(_read_values, notes))

    def put(self, key: bytes, record: Record, checkpoint: int, flags: int = 0) -> None:
        """Store a record."""
        if self._at_once(_PUT, key, checkpoint, flags, record)[0] == _ELSEWHERE:
            self.begin_put(key, record, checkpoint, flags).result(self.timeout)

    def put_new(self, key: bytes, record: Record, checkpoint: int) -> bool:
        """Store a record unless the key exists. Returns whether it was stored."""
        state, stored = self._at_once(_PUT_NEW, key, checkpoint, 0, record)
        if state == _ELSEWHERE:
            stored = self.begin_put_new(key, record, checkpoint).result(self.timeout)
        return bool(stored)

    def begin_put(self, key: bytes, record: Record, checkpoint: int, flags: int = 0) -> Pending:
        """Begin put()."""
        return self._begin("put", key, record.head, checkpoint, flags, buffers=record.blobs)

    def begin_put_new(self, key: bytes, record: Record, checkpoint: int) -> Pending:
        """Begin to store a record unless the key exists; the result is whether it was stored."""
        return self._begin("put_new", key, record.head, checkpoint, buffers=record.blobs)

    def put_many(self, records: list[tuple[bytes, Record]], checkpoint: int, flags: int = 0) -> None:
        """Store several records, all or none."""
        self.begin_put_many(records, checkpoint, flags).result(self.timeout)

    def begin_put_many(self, records: list[tuple[bytes, Record]], checkpoint: int, flags: int = 0) -> Pending:
        """Begin put_many()."""
        heads = [(key, record.head, len(record.blobs)) for key, record in records]
        blobs = [blob for _, record in records for blob in record.blobs]
        return self._begin("put_many", heads, checkpoint, flags, buffers=blobs)

    def take(self, key: bytes, checkpoint: int, note: Note | None = None) -> Any:
        """Delete a key and return its value, or MISSING."""
        state, found = self._at_once(_POP, key, checkpoint, 1, None)
        if state == _ELSEWHERE:
            read = partial(self._read_value, note)
            return self._begin("pop", key, checkpoint, True, change=read).result(self.timeout)
        return _decoded(note, *found) if state == _DONE else MISSING

    def pop(self, key: bytes, checkpoint: int) -> Any:
        """Delete a key. Returns True or MISSING."""
        state, _ = self._at_once(_POP, key, checkpoint, 0, None)
        if state == _ELSEWHERE:
            return True if self._is_there(self._begin("pop", key, checkpoint, False).result(self.timeout)) else MISSING
        return True if state == _DONE else MISSING

    def contains(self, key: bytes, checkpoint: int) -> bool:
        """Return whether the key exists."""
        state, _ = self._at_once(_CONTAINS, key, checkpoint, 0, None)
        if state == _ELSEWHERE:
            return self._is_there(self._begin("contains", key, checkpoint).result(self.timeout))
        return state == _DONE

    def keys(self, checkpoint: int) -> list[bytes]:
        """Return all keys without the copies of broadcast keys."""
        return list(self._begin("keys", checkpoint).result(self.timeout))

    def add(self, key: bytes, value: int, checkpoint: int) -> int:
        """Add to an integer and return the value before."""
        return int(self._begin("add", key, value, checkpoint).result(self.timeout))

    def state(self) -> tuple[int, int, bool, bool]:
        """Return the oldest and the newest checkpoint, whether the shard is frozen, and whether keys may be with other
        managers than their hashes say."""
        oldest, newest, frozen, chosen = self._begin("state").result(self.timeout)
        return oldest, newest, frozen, chosen

    @property
    def local(self) -> LocalShard | None:
        """The part of the shard that is on this node: None."""
        return None

    def home(self) -> int:
        """Return the shard's node."""
        return self.settings.node

    def holders(self) -> list[int]:
        """Return the nodes that hold the shard."""
        return [self.home()]

    def changing_words(self) -> Words | None:
        """Return words of which the first changes with every change; None if this node cannot read such words."""
        return self._shared_words()

    def changed_since(self) -> int:
        """Return a number that differs after a change."""
        return self._shared_words()[0]

    def wait_for_change(self, seen: int, timeout: float | None) -> bool:
        """Wait until changed_since() is no longer `seen`."""
        return self._shared_words().wait(0, seen, timeout) is not None

    def _shared_words(self) -> Words:
        if self._words is None:
            self._words = Words._attached(self.settings.words)
        return self._words


AnyShard = LocalShard | RemoteShard


def spread(
    shards: list[AnyShard], first: int, key: bytes, record: Record, checkpoint: int, flags: int, timeout: float | None
) -> bool:
    """Put a record with all shards, the first without the flags, through a tree of nodes. Returns whether it was done;
    if not, some shards may have it: the value is large, they have replicas, or one would have to wait."""
    words = [shard.settings.words for shard in shards]
    own = words.pop(first)
    if shards[first].settings.holders:
        return False
    state, _ = _core.operate_on_shard(_SPREAD, own, key, record, checkpoint, 0, timeout, words, flags)
    if state == _NO_ANSWER:
        raise DDictTimeoutError("the nodes of the dictionary did not answer in time; some may still store the value")
    return state == _DONE


def _only_value(value: Any, buffers: list[Any]) -> Any:
    return value


def _read_values(notes: list[Note] | None, entries: Any, buffers: list[Any]) -> list[Any]:
    values = []
    for i, entry in enumerate(entries):
        if entry:
            described, blobs = entry
            values.append(_decoded(notes[i] if notes else None, described[2], buffers[:blobs]))
            buffers = buffers[blobs:]
        else:
            values.append(MISSING if entry is None else LATER)
    return values


def _decoded(note: Note | None, head: bytes, buffers: list[Any]) -> Any:
    if note is not None:
        note(len(head) + sum(len(memoryview(memory)) for memory in buffers))
    if not buffers:
        return decode_value(head, _no_blob)

    def blob(i: int, as_bytes: bool) -> Any:
        memory = buffers[i]
        if as_bytes:
            return bytes(memory)
        return bytearray(memory) if isinstance(memory, bytes) else memory

    return decode_value(head, blob)


def client_number() -> tuple[int, int, int]:
    """Return the identity of this process in the run: node, process id, start time."""
    me = this_process()
    return this_run().node, me.pid, me.start_time
