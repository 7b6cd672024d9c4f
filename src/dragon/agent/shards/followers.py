"""Sends this node's operations to the other replicas of its shards: in order, and again if a connection broke.

Each message has a number, and is kept until the other node acknowledges it, or until it is taken back.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from dragon.agent.objects.peers import Peers
from dragon.agent.shards.holding import Whose
from dragon.infrastructure.errors import DestroyedError
from dragon.infrastructure.messages import Name
from dragon.runtime.handle import Channel
from dragon.runtime.protocol.front_end import Proposal
from dragon.runtime.protocol.shards import CreateShard, ShardChannel
from dragon.shards.operations import Request, Tag

__all__ = ["Followers", "Sent"]

_encode = msgspec.msgpack.Encoder().encode
_RECONNECT_S = 0.2  # seconds between two attempts to reach a node


@dataclass(eq=False)
class Sent:
    """A message that was not acknowledged yet. If `buffers` is None they were not kept, so it can be sent only once."""

    shard: Whose
    operation: str
    arguments: Any
    buffers: list[Any] | None
    done: Callable[[], None]
    head: bytes


class Followers:
    """All messages of one node to other replicas; used only in the thread of its service.

    `way_to` opens an outbox to a channel of another node, `later` calls a function in this thread. `on_unreachable` is
    called with a node, a shard about which it was sent something, and the reason why it cannot be reached; it is
    retried anyway. `on_torn` is called with a node and a shard about which it was sent what cannot be sent again.
    """

    def __init__(
        self,
        peers: Peers,
        own_name: Name,
        way_to: Callable[[int, Name], Channel],
        later: Callable[[Callable[[], object]], None],
        on_unreachable: Callable[[int, Whose, str], None],
        on_torn: Callable[[int, Whose], None],
    ) -> None:
        self._peers = peers
        self._own_name = own_name
        self._way_to = way_to
        self._later = later
        self._on_unreachable = on_unreachable
        self._on_torn = on_torn
        self._loop = asyncio.get_running_loop()
        self._services: dict[int, Name] = {}
        # Used only here: if one has failed, its messages are sent again before anything else.
        self._ways: dict[int, Channel] = {}
        self._last = 0
        self._sent: dict[int, dict[int, Sent]] = {}  # by node and number
        self._waiting: set[int] = set()  # nodes to which the connection is being made (again)

    def send(
        self,
        node: int,
        shard: Whose,
        operation: str,
        tag: Tag,
        arguments: Any,
        buffers: list[Any] | None,
        done: Callable[[], None],
        keep: bool = True,
    ) -> None:
        """Send an operation to another replica. Without `keep` the buffers are valid only during the call."""
        self._last += 1
        head = _encode(Request(self._last, self._own_name, os.getpid(), *shard, operation, arguments, tag=tag))
        kept = buffers if keep else None
        self._sent.setdefault(node, {})[self._last] = Sent(shard, operation, arguments, kept, done, head)
        if node in self._waiting:
            return  # it is sent after the earlier ones
        if node not in self._services:
            self._connect(node)
        else:
            self._put(node, head, buffers or [])

    def _put(self, node: int, head: bytes, buffers: list[Any]) -> bool:
        try:
            if node not in self._ways:
                self._ways[node] = self._way_to(0, self._services[node])
            self._ways[node]._put_frames(head, buffers, None)
        except DestroyedError:
            self._ways.pop(node, None)
            self._connect(node)
            return False
        except MemoryError:  # it is sent with all unacknowledged messages, once there is memory
            self._waiting.add(node)
            self.after(_RECONNECT_S, partial(self._call, node))
            return False
        return True

    def acknowledged(self, number: int) -> tuple[int, Sent] | None:
        """Return the node and the message of an acknowledged number; None if it was taken back."""
        for node, sent in self._sent.items():
            if number in sent:
                return node, sent.pop(number)
        return None

    def put_back(self, node: int, number: int, sent: Sent) -> None:
        """Keep a message again that a node could not execute."""
        numbered = self._sent[node]
        numbered[number] = sent
        self._sent[node] = dict(sorted(numbered.items()))

    def take(self, shard: Whose) -> list[Sent]:
        """Remove and return the messages about a shard, in order; they are not waited for any more."""
        found = [(number, node) for node, sent in self._sent.items() for number in sent if sent[number].shard == shard]
        return [self._sent[node].pop(number) for number, node in sorted(found)]

    def prepare(self, node: int, request: CreateShard, then: Callable[[BaseException | None], None]) -> None:
        """Have another agent create a shard; `then` is called in this thread with the exception, or None."""

        async def ask() -> Name:
            await self._peers.ask(node, request)
            return await self._service_of(node)

        def prepared(asked: Future[Name]) -> None:
            error = asked.exception()
            if error is None:
                self._services[node] = asked.result()
            then(error)

        asked = asyncio.run_coroutine_threadsafe(ask(), self._loop)
        asked.add_done_callback(lambda done: self._later(partial(prepared, done)))

    async def _service_of(self, node: int) -> Name:
        return await self._peers.ask(node, ShardChannel(node))

    def propose(self, proposal: Proposal) -> None:
        """Request a decision of the front end on the holders of a shard."""
        self._loop.call_soon_threadsafe(self._peers.propose, proposal)

    def after(self, seconds: float, do: Callable[[], object]) -> None:
        """Call a function in this thread after that time."""
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, self._later, do)

    # ---- connections

    def link_broken(self, node: int) -> None:
        """Send messages again that may be lost."""
        self._ways.pop(node, None)
        if self._sent.get(node):
            self._connect(node)

    def node_lost(self, node: int) -> None:
        """Stop sending to a node. Its unacknowledged messages are to be taken."""
        self._services.pop(node, None)
        self._ways.pop(node, None)

    def _connect(self, node: int) -> None:
        """Connect (again), while other nodes are served."""
        if node not in self._waiting and node not in self._peers.lost:
            self._waiting.add(node)
            self._call(node)

    def _call(self, node: int) -> None:
        asked = asyncio.run_coroutine_threadsafe(self._service_of(node), self._loop)
        asked.add_done_callback(lambda done: self._later(partial(self._connected, node, done)))

    def _connected(self, node: int, asked: Future[Name]) -> None:
        error = asked.exception()
        if node in self._peers.lost or (error is not None and not self._sent.get(node)):
            self._waiting.discard(node)
            return
        if error is not None:
            if node in self._peers.links.unreachable:
                for shard in {one.shard for one in self._sent[node].values()}:
                    self._on_unreachable(node, shard, str(error))
            self.after(_RECONNECT_S, partial(self._call, node))
            return
        self._waiting.discard(node)
        self._services[node] = asked.result()
        for shard in {one.shard for one in self._sent.get(node, {}).values() if one.buffers is None}:
            self._on_torn(node, shard)
        for one in list(self._sent.get(node, {}).values()):
            if not self._put(node, one.head, one.buffers or []):
                return
