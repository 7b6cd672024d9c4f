"""What this node sends to the others that hold a copy of its shards: in order, and again where a connection broke.

Each message has a number, and is kept until the other node says that it did what it says. A node does nothing twice:
it knows the number of the last message that it was sent.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from dragon.agent.peers import Peers
from dragon.infrastructure.ddict_errors import DDictError
from dragon.infrastructure.errors import DestroyedError
from dragon.infrastructure.messages import Name, as_name
from dragon.runtime.handle import Channel
from dragon.runtime.log import runtime_log

__all__ = ["Followers", "Pending", "Sent"]

log = runtime_log("shards")

_encode = msgspec.msgpack.Encoder().encode
_PATIENCE = 20.0  # seconds for another agent to answer


@dataclass(eq=False)
class Pending:
    """Something that others have not done yet, and what happens when they have."""

    waits_for: set[int]
    reply: Callable[[], None] = field(default=lambda: None)

    def done(self, node: int) -> None:
        """That node has done it, or need not any more."""
        if node in self.waits_for:
            self.waits_for.discard(node)
            if not self.waits_for:
                self.reply()


@dataclass(eq=False)
class Sent:
    """A message that was not acknowledged yet. `buffers` are None where they are not kept, so it goes only once."""

    shard: tuple[str, int]
    head: bytes
    buffers: list[Any] | None
    pending: Pending


class Followers:
    """All of one node; used by the thread of its service only.

    `way_to` opens the way to a channel of another node, `later` has something done in this thread. `give_up` is called
    with a node and a shard whose copy there differs from here on.
    """

    def __init__(
        self,
        peers: Peers,
        own_name: Name,
        way_to: Callable[[int, Name], Channel],
        later: Callable[[Callable[[], object]], None],
        give_up: Callable[[int, tuple[str, int], str], None],
    ) -> None:
        self._peers = peers
        self._own_name = own_name
        self._way_to = way_to
        self._later = later
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._services: dict[int, Name] = {}
        # Nobody else's: where one has failed, what went over it is sent again before anything else.
        self._ways: dict[int, Channel] = {}
        self._last = 0
        self._sent: dict[int, dict[int, Sent]] = {}  # by node and number
        self._waiting: set[int] = set()  # nodes to which the connection is being made again

    def send(
        self,
        node: int,
        shard: tuple[str, int],
        operation: str,
        arguments: Any,
        buffers: list[Any],
        pending: Pending,
        keep: bool = True,
    ) -> None:
        """Have another holder do something. Without `keep` the buffers are valid only now."""
        self._last += 1
        head = _encode((self._last, self._own_name, os.getpid(), *shard, operation, arguments))
        self._sent.setdefault(node, {})[self._last] = Sent(shard, head, buffers if keep else None, pending)
        if node in self._waiting:
            return  # it goes after those before it
        try:
            self.reach(node)
        except (DDictError, ConnectionError, TimeoutError) as error:
            self._lose(node, str(error))
            return
        self._put(node, head, buffers)

    def _put(self, node: int, head: bytes, buffers: list[Any]) -> bool:
        try:
            if node not in self._ways:
                self._ways[node] = self._way_to(0, self.reach(node))
            self._ways[node]._put_frames(head, buffers, None)
        except DestroyedError:
            self._ways.pop(node, None)
            self._connect(node)
            return False
        return True

    def acknowledged(self, number: int) -> tuple[int, Sent] | None:
        """What a number meant, and which node has done it; None where nobody waits for that any more."""
        for node, sent in self._sent.items():
            if number in sent:
                return node, sent.pop(number)
        return None

    def take(self, node: int, shard: tuple[str, int] | None = None) -> list[Sent]:
        """What a node was sent, about one shard or all, and is waited for no more."""
        sent = self._sent.get(node, {})
        return [sent.pop(number) for number in [n for n, one in sent.items() if shard in (None, one.shard)]]

    def ask(self, node: int, operation: str, arguments: dict[str, Any]) -> Any:
        """What another agent answers. Raises what it raises, NodeLostError, TimeoutError."""
        return self._asked(node, operation, arguments).result(_PATIENCE)

    def _asked(self, node: int, operation: str, arguments: dict[str, Any]) -> Future[Any]:
        async def ask() -> Any:
            return await self._peers.ask(node, operation, arguments)

        return asyncio.run_coroutine_threadsafe(ask(), self._loop)

    def reach(self, node: int) -> Name:
        """The channel of another node's service. Raises what ask() raises."""
        name = self._services.get(node)
        if name is None:
            name = self._services[node] = as_name(self.ask(node, "shards.service", {}))
        return name

    # ---- connections

    def link_broken(self, node: int) -> None:
        """What was on its way may be lost."""
        self._ways.pop(node, None)
        if self._sent.get(node):
            self._connect(node)

    def node_lost(self, node: int) -> list[Sent]:
        """Nothing goes there any more; what it had not acknowledged."""
        self._services.pop(node, None)
        self._ways.pop(node, None)
        return self.take(node)

    def _connect(self, node: int) -> None:
        """Make the connection again, and meanwhile go on with other nodes."""
        if node not in self._waiting:
            self._waiting.add(node)
            asked = self._asked(node, "shards.service", {})
            asked.add_done_callback(lambda done: self._later(partial(self._connected, node, done)))

    def _connected(self, node: int, asked: Future[Any]) -> None:
        self._waiting.discard(node)
        error = asked.exception()
        if error is not None and node not in self._peers.links.lost:
            self._connect(node)  # it broke again
            return
        if error is not None:
            self._lose(node, str(error))
            return
        for shard in {one.shard for one in self._sent.get(node, {}).values() if one.buffers is None}:
            self._give_up(node, shard, "the connection broke while it was filled")
        for one in list(self._sent.get(node, {}).values()):
            if not self._put(node, one.head, one.buffers or []):
                return

    def _lose(self, node: int, why: str) -> None:
        for shard in {one.shard for one in self._sent.get(node, {}).values()}:
            self._give_up(node, shard, why)
