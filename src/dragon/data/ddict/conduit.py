"""Sends requests to shards of another node through the agent's outbox, and receives the replies on a channel of the
calling thread."""

from __future__ import annotations

import os
import queue
import threading
import time
from contextlib import suppress
from typing import Any

from dragon import _core
from dragon.infrastructure.ddict_errors import DDictTimeoutError
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.start_request import Name
from dragon.infrastructure.structs import msgspec
from dragon.runtime.agent_client import Unwanted, ask, error_named
from dragon.runtime.handle import Channel
from dragon.runtime.nodes import node_at
from dragon.runtime.protocol.objects import WhyGone, WhyLost
from dragon.runtime.protocol.shards import ShardChannel
from dragon.runtime.remote import RemoteChannel
from dragon.runtime.run import this_run
from dragon.shards.operations import Identity, Piece, Reply, Request

_IN_ARENA = 256 * 1024  # bytes from which a value's memory is taken from the arena, whose pages are already mapped


class Arrival:
    """A reply, as far as it has arrived."""

    __slots__ = ("_under_way", "buffers", "pieces", "reply")

    def __init__(self, reply: Reply, buffers: list[Any]) -> None:
        self.reply, self.buffers = reply, buffers
        self.pieces: list[Any] = []
        self._under_way: _core.BytesInPieces | Memory | None = None

    def gather(self) -> bool:
        """Copy the pieces into their buffers. Returns whether the reply is complete."""
        while sizes := self.reply.sizes:
            if self._under_way is None:
                self._under_way = _core.BytesInPieces(sizes[0]) if self.reply.as_bytes else Memory(sizes[0])
            while self.pieces and self._under_way.missing:
                self._under_way.add(self.pieces.pop(0))
            if self._under_way.missing:
                return False
            self.buffers.append(self._under_way.whole())
            sizes.pop(0)
            self._under_way = None
        return True


class Memory:
    """Writable memory of `size` bytes, for example of an array, that is filled with pieces in order."""

    def __init__(self, size: int) -> None:
        self.missing = size
        memory: _core.Loan | None = None
        if size >= _IN_ARENA:
            with suppress(MemoryError):  # the arena has no room
                memory = _core.Loan(size)
        self._memory = memoryview(bytearray(size) if memory is None else memory)

    def add(self, piece: bytes | memoryview) -> None:
        """Append the next piece."""
        start, size = len(self._memory) - self.missing, len(piece)
        self._memory[start : start + size] = piece
        self.missing -= size

    def whole(self) -> memoryview:
        """Return the whole memory."""
        return self._memory


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Reply | Piece).decode
_NODE_CHECK_S = 0.5  # seconds between checks whether the other node is still part of the run


class Conduit:
    """This thread's connection to the shards of another node. Replies may arrive in any order."""

    def __init__(self, node: int, timeout: float | None) -> None:
        self.node = node
        try:
            name = ask(ShardChannel(node), deadline=None if timeout is None else time.monotonic() + timeout)
        except Unwanted:
            raise DDictTimeoutError(f"node {node} did not answer in {timeout:g} s") from None
        self.requests = Channel._attached(name)
        if isinstance(self.requests, RemoteChannel):
            self.requests._droppable = True  # a request that found no memory raises MemoryError
        self.answers = Channel()
        self.name: Name = self.answers._name()
        self.pid = os.getpid()
        self._last = 0
        self._outboxes: dict[int, Channel] = {}  # the channel on which each pending request was sent
        self._arrived: dict[int, Arrival] = {}

    def send(
        self,
        shard: tuple[str, int],
        operation: str,
        arguments: list[Any],
        buffers: list[Any],
        identity: Identity | None,
        newest: bool,
    ) -> int:
        """Send a request for an operation and return its number."""
        self._last += 1
        request = Request(self._last, self.name, self.pid, *shard, operation, arguments, identity, newest)
        self._outboxes[self._last] = self._put(_encode(request), buffers)
        return self._last

    def _put(self, head: bytes, buffers: list[Any]) -> Channel:
        if self.node == this_run().node:
            self.requests._put_frames(head, buffers, None)
            return self.requests
        ended: Channel | None = None
        for _ in range(2):
            outbox = self.requests._outbox()  # type: ignore[attr-defined]
            if outbox is None:
                continue
            try:
                outbox._put_frames(head, buffers, None)
                return outbox  # type: ignore[no-any-return]
            except _core.DestroyedError:
                # The connection broke: pending requests fail, but this one was not sent and may be retried.
                self.requests._out = None  # type: ignore[attr-defined]
                ended = outbox
        raise self._why_gone(ended, f"there is no connection to node {self.node}")

    def receive(self, number: int, deadline: float | None) -> tuple[Any, list[Any]]:
        """Return the reply to a request and its buffers. Raises what the operation raised, and what ended the wait."""
        while (arrival := self._arrived.get(number)) is None or not arrival.gather():
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                self._give_up(number)
                raise DDictTimeoutError(f"node {self.node} did not answer in time; a write may still be done")
            try:
                wait = _NODE_CHECK_S if remaining is None else min(remaining, _NODE_CHECK_S)
                head, buffers = self.answers._get_frames(wait)
            except queue.Empty:
                self._look(number)
                continue
            reply = _decode(head)
            if isinstance(reply, Piece):
                if reply.number in self._arrived:
                    self._arrived[reply.number].pieces.extend(buffers)
            elif reply.number in self._outboxes:  # otherwise the request was given up
                self._arrived[reply.number] = Arrival(reply, buffers)
        self._give_up(number)
        if arrival.reply.error is not None:
            raise error_named(*arrival.reply.error)
        return arrival.reply.value, arrival.buffers

    def _give_up(self, number: int) -> None:
        """Stop waiting for a reply."""
        del self._outboxes[number]
        self._arrived.pop(number, None)

    def _look(self, number: int) -> None:
        outbox = self._outboxes[number]
        try:
            _check_node(self.node)
            outbox._wait_readable(0)  # raises if the channel was destroyed
        except NodeLostError:
            self._give_up(number)
            raise
        except _core.DestroyedError:
            self._give_up(number)
            text = f"there is no connection to node {self.node}; a request may be lost"
            raise self._why_gone(outbox, text) from None
        if self.node == this_run().node:
            return
        kind, error = ask(WhyLost(self.name))
        if kind:  # a reply was lost, and it is not known which one
            self._arrived.update((each, Arrival(Reply(each, error=(kind, error)), [])) for each in self._outboxes)

    def _why_gone(self, outbox: Channel | None, text: str) -> Exception:
        """Return the error that ended the connection, or NodeLostError: why the node is lost, else with `text`."""
        if outbox is not None:
            kind, error = ask(WhyGone(outbox._name()))
            if kind:
                return error_named(kind, error)
        try:
            _check_node(self.node)
        except NodeLostError as error:
            return error
        return NodeLostError(text)


def _check_node(node: int) -> None:
    """Raise NodeLostError if the node is no longer part of the run."""
    try:
        node_at(node)
    except LookupError as error:
        ask(ShardChannel(node))  # raises with the host's name and the reason of the loss
        raise NodeLostError(f"{error}, which held a part of the dictionary") from error


_local = threading.local()


def conduit_to(node: int, timeout: float | None = None) -> Conduit:
    """Return this thread's connection to a node. Raises NodeLostError, and DDictTimeoutError if it must be made."""
    run = str(this_run().folder), os.getpid()
    if getattr(_local, "run", None) != run:
        _local.run, _local.conduits = run, {}
    conduits: dict[int, Conduit] = _local.conduits
    if node not in conduits:
        _check_node(node)
        conduits[node] = Conduit(node, timeout)
    return conduits[node]
