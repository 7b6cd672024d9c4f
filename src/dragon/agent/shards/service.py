"""Operations of other nodes' processes on this node's shards.

A small read is done where it arrives. A thread does everything else, one after the other, so a shard whose writer is
stopped does not keep the agent from its work. A request comes through a channel, and its reply goes through a channel
of the requesting thread; both pass through the outboxes. The content of a large reply follows it in pieces out of the
shard's own memory, so that it is sent while the other end copies it.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from dragon import _core
from dragon.agent.shards.answers import Copies
from dragon.agent.shards.replication import Replication
from dragon.infrastructure.start_request import Name
from dragon.infrastructure.structs import msgspec
from dragon.runtime.handle import Channel
from dragon.runtime.log import Once, runtime_log
from dragon.runtime.remote import node_of
from dragon.runtime.rpc import error_of
from dragon.shards.operations import OPERATIONS, WRITES, Error, Piece, Reply, Request, Result
from dragon.shards.shard import Shard

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from dragon.agent.wire.links import Links

log = runtime_log("shards")

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Request | Reply).decode
_REQUEST_BATCH = 256  # requests before others have their turn
_SMALL = 256 * 1024  # bytes of a reply, at most, that is sent without the thread
_PIECE = 4 * 2**20  # bytes
_MEMORY_RETRY_S = 0.02  # seconds until memory is requested again
_MEMORY_TIMEOUT_S = 10.0  # seconds without memory for an answer, after which an error is sent


class ShardService:
    """The thread and its channel. `shard` finds a shard of this node, `copies` knows which nodes hold a shard."""

    def __init__(self, links: Links, shard: Callable[[str, int], Shard], copies: Copies) -> None:
        self._loop = asyncio.get_running_loop()
        self._links = links
        self._shard = shard
        self._requests = Channel()
        self.name: Name = self._requests._name()
        self._channels: dict[Name, Channel] = {}
        self._tell = Once(log)
        self.inboxes: dict[tuple[int, int], set[Name]] = {}
        self._work: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self.replication = Replication(links, copies, self.name, self._channel_to, self.afterwards)
        self._loop.add_reader(self._requests._fileno(), self._on_requests)
        threading.Thread(target=self._serve, name="shards", daemon=True).start()

    def client_left(self, node: int, pid: int) -> None:
        """Forget a process that has ended: nothing is sent to it any more."""
        for name in self.inboxes.pop((node, pid), ()):
            self._channels.pop(name, None)
            if node != self._links.index:
                self._links.wire.leave(os.getpid(), name)

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
            except msgspec.MsgspecError:
                log.exception("a request to a shard is malformed")
                continue
            if isinstance(request, Reply):
                self._work.put(partial(self.replication.acknowledged, request))
            elif not self._read_at_once(request):
                self._work.put(partial(self._take, request, buffers))
        self._loop.call_soon(self._on_requests)

    def _read_at_once(self, request: Request) -> bool:
        """Answer a request if it is a small read that waits for nothing. Return whether it was."""
        channel = self._channels.get(request.inbox)
        if channel is None or request.operation not in ("value", "values") or request.newest:
            return False
        try:
            shard = self._shard(request.dictionary, request.manager)
            value, buffers, _ = OPERATIONS[request.operation](shard, request.arguments, [])
            if sum(len(memoryview(each)) for each in buffers) > _SMALL:
                return False
            channel._put_frames(_encode(Reply(request.number, value)), buffers, 0)
        except Exception:
            return False  # the thread answers with the error, or waits for memory
        return True

    def _serve(self) -> None:
        while True:
            work = self._work.get()
            try:
                work()
            except Exception:
                log.exception("an operation on a shard failed")
            del work  # and the memory that came with a request

    def _take(self, request: Request, buffers: list[Buffer]) -> None:
        sender = node_of(request.inbox)
        if sender in self._links.lost:
            return  # it sent this before it was declared lost: others may hold its locks by now
        reply = partial(self._reply, request, self._loop.time())
        try:
            shard = self._shard(request.dictionary, request.manager)
            if request.tag is not None:
                self.replication.do(shard, sender, request, buffers, reply)
            elif shard.settings.holders and (request.newest or request.identity or request.operation in WRITES):
                self.replication.ask(shard, request, buffers, reply)
            else:
                reply(OPERATIONS[request.operation](shard, request.arguments, buffers), None)
        except Exception as error:
            reply(Result(), error_of(error))

    def _reply(self, request: Request, since: float, result: Result, error: Error | None) -> None:
        """Answer as soon as there is memory for it; after too long without memory, with an error."""
        try:
            self._send_whole(request, result, error)
        except MemoryError as failure:
            if error is None and self._loop.time() - since > _MEMORY_TIMEOUT_S:
                result, error = Result(), error_of(failure)
            self._later(partial(self._reply, request, since, result, error))

    def _later(self, do: Callable[[], object]) -> None:
        self._tell("answers to requests to dictionaries wait: this node has no free shared memory (DRAGON_ARENA_SIZE)")
        self._loop.call_soon_threadsafe(self._loop.call_later, _MEMORY_RETRY_S, self.afterwards, do)

    def _send_whole(self, request: Request, result: Result, error: Error | None) -> None:
        """Send an answer, a large one in pieces. Raises MemoryError if nothing of it could be sent."""
        value, buffers, as_bytes = result
        sizes = [len(memoryview(each)) for each in buffers]
        if sum(sizes) <= _PIECE:
            self._send(request, _encode(Reply(request.number, value, error)), buffers)
            return
        channel = self._send(request, _encode(Reply(request.number, value, error, sizes, as_bytes)), [])
        if channel is None:
            return
        head = _encode(Piece(request.number))
        pieces = [
            memoryview(each)[start : start + _PIECE]
            for size, each in zip(sizes, buffers, strict=True)
            for start in range(0, size, _PIECE)
        ]
        if node_of(request.inbox) != self._links.index:
            self._links.lend(request.inbox, head, pieces)
        else:
            self._hand_over(channel, request.inbox, head, pieces)

    def _hand_over(self, channel: Channel, name: Name, head: bytes, pieces: list[memoryview]) -> None:
        for index, piece in enumerate(pieces):
            try:
                channel._put_frames(head, [piece], None)
            except MemoryError:
                self._later(partial(self._hand_over, channel, name, head, pieces[index:]))
                return
            except _core.DestroyedError:
                self._channels.pop(name, None)
                return

    def _send(self, request: Request, head: bytes, buffers: list[Buffer]) -> Channel | None:
        name = request.inbox
        for _ in range(2):
            try:
                channel = self._channels.get(name)
                if channel is None:
                    channel = self._channels[name] = self._channel_to(request.pid, name)
                channel._put_frames(head, buffers, None)
                return channel
            except _core.DestroyedError:
                self._channels.pop(name, None)  # its process has ended, or the connection broke and was made again
        log.debug("dropped an answer: no process waits for it any more")
        return None

    def _channel_to(self, pid: int, name: Name) -> Channel:
        self.inboxes.setdefault((node_of(name), pid), set()).add(name)
        is_here = node_of(name) == self._links.index
        return Channel._attached(name if is_here else self._links.wire.open_outbox(os.getpid(), name, True))
