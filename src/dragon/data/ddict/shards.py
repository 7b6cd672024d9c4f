"""A dictionary's shards as a client sees them: those of its own node directly, others by way of the agents."""

from __future__ import annotations

import os
import queue
import threading
import time
from typing import Any

import msgspec

from dragon import _core
from dragon.infrastructure.ddict_errors import DDictTimeoutError
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.messages import Name
from dragon.runtime.agent_client import ask, error_named
from dragon.runtime.entries import Settings, Stored
from dragon.runtime.folder import this_process
from dragon.runtime.handle import Channel, Words
from dragon.runtime.nodes import node_at
from dragon.runtime.records import Record, decode_value
from dragon.runtime.run import this_run
from dragon.runtime.shard import MISSING, Shard

__all__ = ["AnyShard", "LocalShard", "Pending", "RemoteShard", "open_shard"]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_LOOK_EVERY = 0.5  # seconds between looks whether the other node is still there
_IN_ARENA = 256 * 1024  # bytes from which a value's memory comes from the arena, which hands out warm pages


def open_shard(number: str, settings: Settings) -> AnyShard:
    """A shard of a dictionary. Raises DestroyedError where it is gone, NodeLostError where its node is."""
    if settings.node == this_run().node:
        words = Words._attached(settings.words)
        return LocalShard(settings, words, number)
    return RemoteShard(number, settings)


class Pending:
    """What an operation that was begun will give."""

    def result(self, timeout: float | None = None) -> Any:
        """Wait for it at most `timeout` seconds. Raises what the operation raises, DDictTimeoutError."""
        raise NotImplementedError


class _Done(Pending):
    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self, timeout: float | None = None) -> Any:
        return self._value


class LocalShard(Shard):
    """A shard of this node."""

    def __init__(self, settings: Settings, words: Words, number: str) -> None:
        super().__init__(settings, words)
        self.number = number
        self.retire = self._persist_all

    def value(self, key: bytes, checkpoint: int, exact: bool = False) -> Any:
        """The value of a key, or MISSING."""
        return self.read(key, checkpoint, _copied, exact)

    def take(self, key: bytes, checkpoint: int) -> Any:
        """The same; and the key is deleted."""
        return self.pop(key, checkpoint, _copied)

    def begin_value(self, key: bytes, checkpoint: int) -> Pending:
        """Begin value()."""
        return _Done(self.value(key, checkpoint))

    def begin_put(self, key: bytes, record: Record, checkpoint: int, flags: int = 0) -> Pending:
        """Begin put()."""
        self.put(key, record, checkpoint, flags)
        return _Done(None)

    def begin_put_many(self, records: list[tuple[bytes, Record]], checkpoint: int, flags: int = 0) -> Pending:
        """Begin put_many()."""
        self.put_many(records, checkpoint, flags)
        return _Done(None)

    def begin(self, method: str, *arguments: Any) -> Pending:
        """Begin any operation with plain arguments."""
        return _Done(getattr(self, method)(*arguments))

    @property
    def local(self) -> LocalShard | None:
        """What of it is on this node."""
        return self

    def home(self) -> int:
        """The node that decides about it."""
        return self.settings.node

    def state(self) -> tuple[int, int, bool]:
        """The oldest and the newest checkpoint, and whether it is frozen."""
        self._check()
        return self.oldest, self.newest, self.is_frozen

    def _persist_all(self, checkpoints: list[int]) -> None:
        for checkpoint in checkpoints:
            ask(
                "shards.persist",
                number=self.number,
                manager=self.settings.manager,
                checkpoint=checkpoint,
                node=self.settings.node,
            )


def _copied(stored: Stored) -> Any:
    if not stored.blobs:
        return decode_value(stored.head, _no_blob)

    def blob(i: int, as_bytes: bool) -> Any:
        pieces = stored.blobs[i]
        if as_bytes:
            return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)
        size = sum(len(piece) for piece in pieces)
        memory = memoryview(_new_memory(size))
        start = 0
        for piece in pieces:
            memory[start : start + len(piece)] = piece
            start += len(piece)
        return memory

    return decode_value(stored.head, blob)


def _no_blob(i: int, as_bytes: bool) -> Any:
    raise ValueError("a record refers to memory that it does not have; it is damaged")


def _new_memory(size: int) -> Any:
    if size >= _IN_ARENA:
        try:
            return _core.Loan(size)
        except MemoryError:
            pass  # the arena is full of other things
    return bytearray(size)


class _Conduit:
    """This thread's way to the shards of another node. Answers come in any order."""

    def __init__(self, node: int) -> None:
        service = ask("shards.service", node=node)
        self.node = node
        self.requests = Channel._attached((service[0], service[1], service[2]))
        self.answers = Channel()
        self.name: Name = self.answers._name()
        self.pid = os.getpid()
        self._last = 0
        self._arrived: dict[int, tuple[Any, Any, list[Any]]] = {}
        self._given_up: set[int] = set()

    def send(self, number: str, manager: int, operation: str, arguments: tuple[Any, ...], buffers: list[Any]) -> int:
        self._last += 1
        head = _encode((self._last, self.name, self.pid, number, manager, operation, arguments))
        self._put(head, buffers)
        return self._last

    def _put(self, head: bytes, buffers: list[Any]) -> None:
        if self.node == this_run().node:
            self.requests._put_frames(head, buffers, None)
            return
        outbox = self.requests._outbox()  # type: ignore[attr-defined]
        try:
            outbox._put_frames(head, buffers, None)
        except _core.DestroyedError:
            self.requests._lose_outbox(outbox)  # type: ignore[attr-defined]  # raises what is known of it
            self.requests._outbox()._put_frames(head, buffers, None)  # type: ignore[attr-defined]

    def receive(self, number: int, deadline: float | None) -> tuple[Any, list[Any]]:
        while number not in self._arrived:
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                self._given_up.add(number)
                raise DDictTimeoutError(f"node {self.node} did not answer in time")
            try:
                wait = _LOOK_EVERY if remaining is None else min(remaining, _LOOK_EVERY)
                head, buffers = self.answers._get_frames(wait)
            except queue.Empty:
                self._look()
                continue
            which, value, error = _decode(head)
            if which in self._given_up:
                self._given_up.discard(which)
            else:
                self._arrived[which] = value, error, buffers
        value, error, buffers = self._arrived.pop(number)
        if error is not None:
            raise error_named(*error)
        return value, buffers

    def _look(self) -> None:
        _check_node(self.node)


def _check_node(node: int) -> None:
    """Raises NodeLostError where the run has that node no more."""
    try:
        node_at(node)
    except LookupError:
        raise NodeLostError(f"node {node}, which holds this part of the dictionary, is gone") from None


_local = threading.local()


def _conduit(node: int) -> _Conduit:
    run = str(this_run().folder), os.getpid()
    if getattr(_local, "run", None) != run:
        _local.run, _local.conduits = run, {}
    conduits: dict[int, _Conduit] = _local.conduits
    if node not in conduits:
        _check_node(node)
        conduits[node] = _Conduit(node)
    return conduits[node]


class _Asked(Pending):
    """An answer of another node; it comes to the thread that asked."""

    def __init__(self, conduit: _Conduit, number: int, change: Any) -> None:
        self._conduit = conduit
        self._number = number
        self._change = change

    def result(self, timeout: float | None = None) -> Any:
        deadline = None if timeout is None else time.monotonic() + timeout
        return self._change(*self._conduit.receive(self._number, deadline))


class RemoteShard:
    """A shard of another node. Does what LocalShard does."""

    def __init__(self, number: str, settings: Settings) -> None:
        self.number = number
        self.settings = settings
        self._words: Words | None = None

    @property
    def where(self) -> str:
        """How messages name it."""
        return f"manager {self.settings.manager} on node {self.settings.node}"

    def close(self) -> None:
        """Drop what this process has of it."""
        if self._words is not None:
            self._words._close()

    def _begin(self, operation: str, *arguments: Any, buffers: list[Any] | None = None, change: Any = None) -> Pending:
        return self._begin_at(self.settings.node, operation, arguments, buffers, change)

    def _begin_at(
        self, node: int, operation: str, arguments: tuple[Any, ...], buffers: list[Any] | None, change: Any
    ) -> Pending:
        conduit = _conduit(node)
        number = conduit.send(self.number, self.settings.manager, operation, arguments, buffers or [])
        return _Asked(conduit, number, change or _only_value)

    def begin(self, method: str, *arguments: Any) -> Pending:
        """Begin any operation with plain arguments."""
        return self._begin(method, *arguments)

    def value(self, key: bytes, checkpoint: int, exact: bool = False) -> Any:
        """The value of a key, or MISSING."""
        return self._begin("read", key, checkpoint, exact, False, change=_read_value).result()

    def begin_value(self, key: bytes, checkpoint: int) -> Pending:
        """Begin value()."""
        return self._begin("read", key, checkpoint, False, False, change=_read_value)

    def put(self, key: bytes, record: Record, checkpoint: int, flags: int = 0) -> None:
        """Store a record."""
        self.begin_put(key, record, checkpoint, flags).result()

    def begin_put(self, key: bytes, record: Record, checkpoint: int, flags: int = 0) -> Pending:
        """Begin put()."""
        return self._begin("put", key, record.head, checkpoint, flags, buffers=record.blobs)

    def put_many(self, records: list[tuple[bytes, Record]], checkpoint: int, flags: int = 0) -> None:
        """Store several records, all or none."""
        self.begin_put_many(records, checkpoint, flags).result()

    def begin_put_many(self, records: list[tuple[bytes, Record]], checkpoint: int, flags: int = 0) -> Pending:
        """Begin put_many()."""
        heads = [(key, record.head, len(record.blobs)) for key, record in records]
        blobs = [blob for _, record in records for blob in record.blobs]
        return self._begin("put_many", heads, checkpoint, flags, buffers=blobs)

    def take(self, key: bytes, checkpoint: int) -> Any:
        """The value of a key, which is deleted, or MISSING."""
        return self._begin("pop", key, checkpoint, True, change=_popped_value).result()

    def pop(self, key: bytes, checkpoint: int) -> Any:
        """Delete a key; True or MISSING."""
        found = self._begin("pop", key, checkpoint, False).result()
        return MISSING if found is None else True

    def contains(self, key: bytes, checkpoint: int) -> bool:
        """Whether the key is there."""
        return bool(self._begin("contains", key, checkpoint).result())

    def keys(self, checkpoint: int) -> list[bytes]:
        """All keys, but for copies of broadcasts."""
        return list(self._begin("keys", checkpoint).result())

    def add(self, key: bytes, value: int, checkpoint: int) -> int:
        """Add to an integer; the value before."""
        return int(self._begin("add", key, value, checkpoint).result())

    def state(self) -> tuple[int, int, bool]:
        """The oldest and the newest checkpoint, and whether it is frozen."""
        oldest, newest, frozen = self._begin("state").result()
        return oldest, newest, frozen

    @property
    def local(self) -> LocalShard | None:
        """What of it is on this node."""
        return None

    def home(self) -> int:
        """The node that decides about it."""
        return self.settings.node

    def changed_since(self) -> int:
        """A number that differs after a change."""
        return self._shared_words()[0]

    def wait_for_change(self, seen: int, timeout: float | None) -> bool:
        """Wait until changed_since() is no longer `seen`."""
        return self._shared_words().wait(0, seen, timeout)

    def _shared_words(self) -> Words:
        if self._words is None:
            self._words = Words._attached(self.settings.words)
        return self._words


AnyShard = LocalShard | RemoteShard


def _only_value(value: Any, buffers: list[Any]) -> Any:
    return value


def _read_value(value: Any, buffers: list[Any]) -> Any:
    return MISSING if value[0] is None else _decoded(value[0], buffers)


def _popped_value(value: Any, buffers: list[Any]) -> Any:
    return MISSING if value is None else _decoded(value, buffers)


def _decoded(described: Any, buffers: list[Any]) -> Any:
    def blob(i: int, as_bytes: bool) -> Any:
        memory = buffers[i]
        if as_bytes:
            return bytes(memory)
        return bytearray(memory) if isinstance(memory, bytes) else memory

    return decode_value(described[2], blob)


def client_number() -> tuple[int, int, int]:
    """This process among all of the run: node, process id, start time."""
    me = this_process()
    return this_run().node, me.pid, me.start_time
