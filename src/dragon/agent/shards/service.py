"""Operations of other nodes' processes on this node's shards.

A small read, which waits for nothing, is done where it arrives. A thread does everything else, one after the other, so
a shard whose writer is stopped does not keep the agent from its work. A request comes through a channel, and its
answer goes through a channel of the requesting thread; both pass through the outboxes.

A request has seven parts or eight. The eighth is the identity of a write that is done once however often it is
requested, or the epoch that one holder of a shard sends another, or empty, for a read that sees every write that was
answered before it. An answer has three parts. A large answer is announced first, with the sizes of its buffers and
whether they become bytes objects; its content follows in pieces out of the shard's own memory, so that it is sent
while the other end copies it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

import msgspec

from dragon import _core
from dragon.agent.objects.peers import Peers
from dragon.agent.shards.holding import Copies, Holding, Whose
from dragon.agent.shards.replication import REPLICATION, Replication
from dragon.agent.wire.session import error_of
from dragon.infrastructure.messages import Name, as_name
from dragon.runtime.handle import Channel
from dragon.runtime.log import Once, runtime_log
from dragon.runtime.remote import node_of
from dragon.shards.operations import OPERATIONS, WRITES, read_here
from dragon.shards.shard import Shard

__all__ = ["ShardService"]

log = runtime_log("shards")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_REQUEST_BATCH = 256  # requests before others have their turn
_PIECE = 4 * 2**20  # bytes
_MEMORY_RETRY_S = 0.02  # seconds until memory is requested again
_MEMORY_TIMEOUT_S = 10.0  # seconds without memory for an answer, after which an error is sent


@dataclass(slots=True)
class _Answer:
    """An answer to the request `number` for the inbox of a process. It exists `since` then."""

    pid: int
    inbox: Name
    number: int
    value: Any
    buffers: list[Any]
    error: tuple[str, str] | None
    as_bytes: bool
    since: float


class ShardService:
    """The thread and its channel. `shard` finds a shard of this node, `copies` knows which nodes hold a shard."""

    def __init__(self, peers: Peers, shard: Callable[[str, int], Shard], copies: Copies) -> None:
        self._loop = asyncio.get_running_loop()
        self._peers = peers
        self._shard = shard
        self._requests = Channel()
        self.name: Name = self._requests._name()
        self._ways: dict[Name, Channel] = {}
        self._tell = Once(log)
        self.inboxes: dict[tuple[int, int], set[Name]] = {}
        self._work: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._replication = Replication(peers, copies, self.name, self._way_to, self.afterwards)
        self._loop.add_reader(self._requests._fileno(), self._on_requests)
        threading.Thread(target=self._serve, name="shards", daemon=True).start()

    def client_left(self, node: int, pid: int) -> None:
        """Forget a process that has ended: nothing is sent to it any more."""
        for name in self.inboxes.pop((node, pid), ()):
            self._ways.pop(name, None)
            if node != self._peers.index:
                self._peers.links.wire.leave(os.getpid(), name)

    def node_lost(self, node: int, epoch: int) -> None:
        """Handle the loss of a node, after all requests that came before."""
        self.afterwards(partial(self._replication.node_lost, node, epoch))

    def decided(self, whose: Whose, holding: Holding) -> None:
        """Take over a decision of the front end which nodes keep a shard."""
        self.afterwards(partial(self._replication.decided, whose, holding))

    def forget(self, number: str) -> None:
        """Forget a dictionary that was destroyed."""
        self.afterwards(partial(self._replication.forget, number))

    def look_after_copies(self) -> None:
        """Start the copies of shards that are missing."""
        self.afterwards(self._replication.look_after_copies)

    def link_broken(self, node: int) -> None:
        """Handle that the connection to another node broke."""
        self.afterwards(partial(self._replication.link_broken, node))

    def afterwards(self, do: Callable[[], object]) -> None:
        """Have the thread call `do` after all that was requested before."""
        self._work.put(do)

    def _on_requests(self) -> None:
        for _ in range(_REQUEST_BATCH):
            try:
                head, buffers = self._requests._get_frames(0)
            except (Empty, _core.LockedError):
                return
            try:
                request = _decode(head)
            except (msgspec.MsgspecError, ValueError):
                log.exception("a request to a shard is malformed")
                continue
            if len(request) != 7 or not self._read_here(request):
                self._work.put(partial(self._take, request, buffers))
        self._loop.call_soon(self._on_requests)

    def _read_here(self, request: Any) -> bool:
        """Answer a request at once if it is a small read that waits for nothing. Return whether it was."""
        number, inbox, _, dictionary, manager, operation, arguments = request[:7]
        way = self._ways.get(as_name(inbox))
        if way is None:
            return False

        def answer(value: Any, buffers: list[Any], *, as_bytes: bool = False) -> None:
            way._put_frames(_encode((number, value, None)), buffers, 0)

        try:
            return read_here(self._shard(dictionary, manager), operation, arguments, answer)
        except Exception:
            return False  # the thread answers with the error, or waits for memory

    def _serve(self) -> None:
        while True:
            work = self._work.get()
            try:
                work()
            except Exception:
                log.exception("an operation on a shard failed")
            del work  # and the memory that came with a request

    def _take(self, request: Any, buffers: list[Any]) -> None:
        if len(request) == 3:
            self._replication.acknowledged(*request)
            return
        number, inbox, pid, dictionary, manager, operation, arguments, *more = request
        name = as_name(inbox)
        sender = node_of(name)
        if sender in self._peers.lost:
            return  # it sent this before it was declared lost: others may hold its locks by now
        reply = partial(self._reply, pid, name, number)
        try:
            shard = self._shard(dictionary, manager)
            if operation in REPLICATION:
                self._replication.do(
                    shard, (dictionary, manager), sender, operation, more[0], arguments, buffers, reply
                )
            elif shard.settings.holders and (more or operation in WRITES):
                asked = (more[0] or None) if more else None
                self._replication.ask(shard, (dictionary, manager), asked, operation, arguments, buffers, reply)
            else:
                OPERATIONS[operation](shard, arguments, buffers, reply)
        except Exception as error:
            reply(None, [], error_of(error))

    def _reply(
        self,
        pid: int,
        inbox: Name,
        number: int,
        value: Any,
        buffers: list[Any],
        error: tuple[str, str] | None = None,
        *,
        as_bytes: bool = False,
    ) -> None:
        self._give(_Answer(pid, inbox, number, value, buffers, error, as_bytes, self._loop.time()))

    def _give(self, answer: _Answer) -> None:
        """Send an answer as soon as there is memory for it; after too long without memory, send an error."""
        try:
            self._send_whole(answer)
        except MemoryError as failure:
            if answer.error is None and self._loop.time() - answer.since > _MEMORY_TIMEOUT_S:
                answer.value, answer.buffers, answer.error = None, [], error_of(failure)
            self._later(partial(self._give, answer))

    def _later(self, do: Callable[[], object]) -> None:
        self._tell("answers to requests to dictionaries wait: this node has no free shared memory (DRAGON_ARENA_SIZE)")
        self._loop.call_soon_threadsafe(self._loop.call_later, _MEMORY_RETRY_S, self.afterwards, do)

    def _send_whole(self, answer: _Answer) -> None:
        """Send an answer, a large one in pieces. Raises MemoryError if nothing of it could be sent."""
        number, buffers, inbox = answer.number, answer.buffers, answer.inbox
        sizes = [len(memoryview(each)) for each in buffers]
        if sum(sizes) <= _PIECE:
            self._send(answer.pid, inbox, _encode((number, answer.value, answer.error)), buffers)
            return
        told = _encode((number, answer.value, answer.error, sizes, answer.as_bytes))
        way = self._send(answer.pid, inbox, told, [])
        if way is None:
            return
        head = _encode((number,))
        pieces = [
            memoryview(each)[start : start + _PIECE]
            for size, each in zip(sizes, buffers, strict=True)
            for start in range(0, size, _PIECE)
        ]
        if node_of(inbox) != self._peers.index:
            self._peers.links.lend(inbox, head, pieces)
            return
        self._hand_over(way, inbox, head, pieces)

    def _hand_over(self, way: Channel, name: Name, head: bytes, pieces: list[memoryview]) -> None:
        """Send the pieces of an answer to a process of this node."""
        for index, piece in enumerate(pieces):
            try:
                way._put_frames(head, [piece], None)
            except MemoryError:
                self._later(partial(self._hand_over, way, name, head, pieces[index:]))
                return
            except _core.DestroyedError:
                self._ways.pop(name, None)
                return

    def _send(self, pid: int, name: Name, head: bytes, buffers: list[Any]) -> Channel | None:
        for _ in range(2):
            try:
                channel = self._ways.get(name)
                if channel is None:
                    channel = self._ways[name] = self._way_to(pid, name)
                channel._put_frames(head, buffers, None)
                return channel
            except _core.DestroyedError:
                self._ways.pop(name, None)  # its process has ended, or the connection broke and was made again
        log.debug("dropped an answer: no process waits for it any more")
        return None

    def _way_to(self, pid: int, name: Name) -> Channel:
        self.inboxes.setdefault((node_of(name), pid), set()).add(name)
        is_here = node_of(name) == self._peers.index
        return Channel._attached(name if is_here else self._peers.links.wire.open_outbox(os.getpid(), name, True))
