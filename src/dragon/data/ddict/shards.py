"""The shards of a dictionary as a client uses them: those of its own node directly, others through the agents."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any, Generic, NoReturn, Self

from dragon import _core
from dragon.data.ddict.conduit import Memory, conduit_to
from dragon.infrastructure.ddict_errors import DDictTimeoutError
from dragon.infrastructure.generic import V
from dragon.runtime.agent_client import ask
from dragon.runtime.handle import Lock, Words
from dragon.runtime.protocol.shards import Persist, Settings
from dragon.shards.operations import Identity
from dragon.shards.records import Record, decode_value
from dragon.shards.shard import MISSING, Shard, Stored, where

# A function that is called with the size in bytes of a value in its encoded form.
Note = Callable[[int], None]

_GET, _CONTAINS, _PUT, _PUT_NEW, _POP, _SPREAD = (
    _core.OPERATIONS[f"Shard.{name}"] for name in ("get", "contains", "put", "put_new", "pop", "spread")
)
_MISSING, _DONE, _ELSEWHERE, _NO_ANSWER = range(4)  # states of operate_on_shard()

LATER: object = type("Later", (), {"__repr__": lambda self: "LATER"})()
"""In place of a value that is too large to be sent together with others."""


class Pending(Generic[V]):
    """The pending result of an operation. `wait(timeout)` waits for it and returns it."""

    def __init__(self, wait: Callable[[float | None], V]) -> None:
        self._wait = wait

    def result(self, timeout: float | None = None) -> V:
        """Wait at most `timeout` seconds for the result. Raises the operation's exception, DDictTimeoutError."""
        return self._wait(timeout)


class Done(Pending[V]):
    """The result of an operation that is complete already."""

    def __init__(self, value: V) -> None:
        self._value = value

    def result(self, timeout: float | None = None) -> V:
        """Return the value."""
        return self._value


class LocalShard(Shard):
    """A shard on this node."""

    told_chosen = False  # used by RemoteShard only: a local shard reads it from its words

    def __init__(self, settings: Settings, words: Words, lock: Lock, number: str) -> None:
        super().__init__(settings, words, lock)
        self.number = number
        self.note: Note | None = None
        self.retire = self._persist_all

    @classmethod
    def attached(cls, number: str, settings: Settings) -> LocalShard:
        """Open a shard of this node. Raises DestroyedError if it was destroyed."""
        return cls(settings, Words._attached(settings.words), Lock._attached(settings.lock), number)

    def within(self, timeout: float | None, note: Note | None = None) -> LocalShard:
        """Return the same shard with a timeout; `note` is called with the size of each value that is read."""
        limited = LocalShard(self.settings, self.words, self._lock, self.number)
        limited.timeout, limited.note = timeout, note
        return limited

    def value(self, key: bytes, checkpoint: int) -> object:
        """Return the value of a key, or MISSING. If frozen, its buffers are the shard's memory, to be read only."""
        head = self.head(key, checkpoint)
        if isinstance(head, bytes):
            if self.note is not None:
                self.note(len(head))
            return decode_value(head, _no_blob)
        if head is None:
            return MISSING
        if self.is_frozen:
            pinned = self.pin(key, checkpoint)
            return MISSING if pinned is None else self._value_of(pinned[1], pinned[0])
        return self.read(key, checkpoint, self._value_of)

    def values(self, keys: list[bytes], checkpoint: int) -> list[Any]:
        """Return the values of several keys."""
        return [self.value(key, checkpoint) for key in keys]

    def take(self, key: bytes, checkpoint: int) -> object:
        """Delete a key and return its value, or MISSING."""
        return self.pop(key, checkpoint, self._value_of)

    def _value_of(self, stored: Stored, owner: object = None) -> object:
        """Return the value of a record, with a copy of its memory, or with that memory if `owner` keeps it alive."""
        if self.note is not None:
            self.note(stored.size)

        def blob(i: int, as_bytes: bool) -> _core.Pinned | bytes | memoryview:
            pieces = stored.blobs[i]
            if owner is not None and len(pieces) == 1 and not as_bytes:
                return _core.Pinned(pieces[0], owner)
            size = sum(len(piece) for piece in pieces)
            memory = _core.BytesInPieces(size) if as_bytes else Memory(size)
            for piece in pieces:
                memory.add(piece)
            return memory.whole()

        return decode_value(stored.head, blob if stored.blobs else _no_blob)

    def begin(self, method: str, *arguments: object) -> Pending:
        """Call a method."""
        return Done(getattr(self, method)(*arguments))

    def call(self, method: str, *arguments: object) -> Any:
        """Call a method."""
        return getattr(self, method)(*arguments)

    @property
    def local(self) -> LocalShard | None:
        """The part of the shard that is on this node: the shard itself."""
        return self

    def changing_words(self) -> Words | None:
        """Return words of which the first changes with every change."""
        return self.words

    def holders(self) -> list[int]:
        """Return the nodes that hold the shard, the primary's first."""
        return [self.settings.node]

    def _persist_all(self, checkpoints: list[int]) -> None:
        for checkpoint in checkpoints:
            ask(Persist(self.settings.node, self.number, self.settings.manager, checkpoint))


def _no_blob(i: int, as_bytes: bool) -> NoReturn:
    raise ValueError("a record is damaged: it refers to memory that it does not have")


class RemoteShard:
    """A shard on another node. begin() and call() have the methods of LocalShard."""

    local: LocalShard | None = None  # the part of the shard that is on this node

    def __init__(self, number: str, settings: Settings) -> None:
        self.number = number
        self.settings = settings
        self.timeout: float | None = None
        self.note: Note | None = None
        self.told_chosen = False  # whether a reply said that keys may be with other managers than their hashes say
        self._words: Words | None = None

    def within(self, timeout: float | None, note: Note | None = None) -> Self:
        """Return the same shard with a timeout, and a function for the sizes of values, as a LocalShard."""
        limited = copy.copy(self)
        limited.timeout, limited.note = timeout, note
        return limited

    @property
    def where(self) -> str:
        """The name of the shard in messages."""
        return where(self.settings)

    def close(self) -> None:
        """Close the shard's memory in this process."""
        if self._words is not None:
            self._words._close()

    def begin(self, method: str, *arguments: object) -> Pending:
        """Send a request to call a method of the shard. The values of values() can be LATER."""
        given: list[Any] = list(arguments)
        buffers: list[Any] = []
        if method in ("put", "put_new"):
            given[1], buffers = given[1].head, given[1].blobs
        elif method == "put_many":
            buffers = [blob for _, record in given[0] for blob in record.blobs]
            given[0] = [(key, record.head, len(record.blobs)) for key, record in given[0]]
        return self._begin(method, given, buffers)

    def call(self, method: str, *arguments: object) -> Any:
        """Call a method of the shard."""
        return self.begin(method, *arguments).result(self.timeout)

    def _begin(self, method: str, arguments: list[Any], buffers: list[Any]) -> Pending:
        return self._send(self.settings.node, method, arguments, buffers)

    def _send(
        self,
        node: int,
        method: str,
        arguments: list[Any],
        buffers: list[Any],
        identity: Identity | None = None,
        newest: bool = False,
    ) -> Pending:
        conduit, shard = conduit_to(node, self.timeout), (self.number, self.settings.manager)
        number = conduit.send(shard, method, arguments, buffers, identity, newest)

        def wait(timeout: float | None) -> object:
            """Receive the reply, which only this thread can."""
            deadline = None if timeout is None else time.monotonic() + timeout
            return self._result(method, *conduit.receive(number, deadline))

        return Pending(wait)

    def _result(self, method: str, value: Any, buffers: list[Any]) -> object:
        """Return what the method returns, from the reply to a request."""
        if method == "values":
            return self._values(value, buffers)
        if method not in ("value", "take", "pop", "contains"):
            return value
        self.told_chosen = self.told_chosen or value is False
        there = value is not None and value is not False
        if method == "contains":
            return there
        return (value if method == "pop" else self._decoded(value, buffers)) if there else MISSING

    def _values(self, entries: list[Any], buffers: list[Any]) -> list[Any]:
        values = []
        for entry in entries:
            if entry:
                head, blobs = entry
                values.append(self._decoded(head, buffers[:blobs]))
                buffers = buffers[blobs:]
            else:
                values.append(MISSING if entry is None else LATER)
        return values

    def _decoded(self, head: bytes, buffers: list[Any]) -> object:
        if self.note is not None:
            self.note(len(head) + sum(len(memoryview(memory)) for memory in buffers))
        if not buffers:
            return decode_value(head, _no_blob)

        def blob(i: int, as_bytes: bool) -> bytes | bytearray | _core.Loan:
            memory = buffers[i]
            if as_bytes:
                return bytes(memory)
            return bytearray(memory) if isinstance(memory, bytes) else memory

        return decode_value(head, blob)

    def _at_once(self, what: int, key: bytes, checkpoint: int, flags: int, record: Record | None) -> tuple[int, Any]:
        """Have the wire of the shard's node do it. Returns _DONE and the result, _MISSING, or _ELSEWHERE."""
        if self.settings.holders:
            return _ELSEWHERE, None
        state, value = _core.operate_on_shard(what, self.settings.words, key, record, checkpoint, flags, self.timeout)
        if state == _NO_ANSWER:
            raise DDictTimeoutError(f"node {self.settings.node} did not answer in time; a write may still be done")
        if state == _MISSING:
            self.told_chosen = self.told_chosen or value
        return state, value

    def value(self, key: bytes, checkpoint: int) -> object:
        """Return the value of a key, or MISSING."""
        state, found = self._at_once(_GET, key, checkpoint, 0, None)
        if state == _ELSEWHERE:
            return self.call("value", key, checkpoint)
        return self._decoded(*found) if state == _DONE else MISSING

    def put(self, key: bytes, record: Record, checkpoint: int, flags: int = 0) -> None:
        """Store a record."""
        if self._at_once(_PUT, key, checkpoint, flags, record)[0] == _ELSEWHERE:
            self.call("put", key, record, checkpoint, flags)

    def put_new(self, key: bytes, record: Record, checkpoint: int) -> bool:
        """Store a record unless the key exists. Returns whether it was stored."""
        state, stored = self._at_once(_PUT_NEW, key, checkpoint, 0, record)
        return bool(self.call("put_new", key, record, checkpoint) if state == _ELSEWHERE else stored)

    def take(self, key: bytes, checkpoint: int) -> object:
        """Delete a key and return its value, or MISSING."""
        state, found = self._at_once(_POP, key, checkpoint, 1, None)
        if state == _ELSEWHERE:
            return self.call("take", key, checkpoint)
        return self._decoded(*found) if state == _DONE else MISSING

    def pop(self, key: bytes, checkpoint: int) -> object:
        """Delete a key. Returns True or MISSING."""
        state, _ = self._at_once(_POP, key, checkpoint, 0, None)
        if state == _ELSEWHERE:
            return self.call("pop", key, checkpoint)
        return True if state == _DONE else MISSING

    def contains(self, key: bytes, checkpoint: int) -> bool:
        """Return whether the key exists."""
        state, _ = self._at_once(_CONTAINS, key, checkpoint, 0, None)
        return bool(self.call("contains", key, checkpoint)) if state == _ELSEWHERE else state == _DONE

    def holders(self) -> list[int]:
        """Return the nodes that hold the shard, the primary's first."""
        return [self.settings.node]

    def changing_words(self) -> Words | None:
        """Return words of which the first changes with every change; None if this node cannot read such words."""
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
