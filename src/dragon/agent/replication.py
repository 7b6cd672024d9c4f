"""Shards that several nodes keep.

The first of a shard's holders decides: it does every write itself, in its order, has the others do the same, and
answers when all have. When it is lost the next one goes on. A holder that is lost is replaced by a node that has none
yet: it is given all entries, and counts from then on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from dragon.agent.shard_operations import OPERATIONS
from dragon.infrastructure.ddict_errors import DDictError, DDictMovedError
from dragon.infrastructure.errors import DestroyedError
from dragon.infrastructure.messages import Name
from dragon.runtime.log import runtime_log
from dragon.runtime.shard import Shard

if TYPE_CHECKING:
    from dragon.agent.cluster import Cluster

__all__ = ["REPLICATION", "Copies", "Replication"]

log = runtime_log("shards")

REPLICATION = frozenset({"_apply", "_load", "_holders"})
_encode = msgspec.msgpack.Encoder().encode
_TOGETHER = 2**20  # bytes of entries that a new holder is sent at a time
_PATIENCE = 20.0  # seconds for another agent to answer

Send = Callable[[int, Name, bytes, list[Any]], None]
Reply = Callable[[int, Name, int, Any, list[Any]], None]


class Copies(Protocol):
    """What this node knows of who holds what."""

    def holders(self, number: str, manager: int) -> list[int]: ...
    def set_holders(self, number: str, manager: int, holders: list[int]) -> None: ...
    def held(self) -> Iterator[tuple[str, Shard]]: ...


@dataclass
class _Pending:
    """A write that others have not done yet, and whom to tell when they have."""

    waits_for: set[int]
    shard: tuple[str, int]
    reply: Callable[[], None] = field(default=lambda: None)


class Replication:
    """What of the service concerns replicas; used by its thread only."""

    def __init__(self, cluster: Cluster, copies: Copies, own_name: Name, send: Send, reply: Reply) -> None:
        self._cluster = cluster
        self._copies = copies
        self._own_name = own_name
        self._send = send
        self._reply = reply
        self._loop = asyncio.get_running_loop()
        self._services: dict[int, Name] = {}
        self._last = 0
        self._pending: dict[int, _Pending] = {}
        self._sent_to: dict[int, int] = {}  # which node a number was sent to

    # ---- the holder that decides

    def write(
        self,
        shard: Shard,
        number: str,
        asked: tuple[int, int, Name],
        operation: str,
        arguments: list[Any],
        buffers: list[Any],
    ) -> None:
        """Do a write here and on every other holder, then answer."""
        manager = shard.settings.manager
        try:
            first = self._copies.holders(number, manager)[0]
        except LookupError as error:
            raise DDictMovedError(f"{shard.where} counts no more: {error}") from error
        if first != self._cluster.index:
            raise DDictMovedError(f"{shard.where} is decided about on node {first}")
        answer: list[Any] = []
        OPERATIONS[operation](shard, arguments, buffers, lambda value, found: answer.extend((value, found)))
        which, pid, name = asked

        def reply() -> None:
            self._reply(pid, name, which, *answer)

        self._to_others(number, manager, "_apply", (operation, arguments), buffers, reply)

    def _to_others(
        self, number: str, manager: int, operation: str, arguments: Any, buffers: list[Any], reply: Callable[[], None]
    ) -> None:
        others = self._copies.holders(number, manager)[1:]
        pending = _Pending(set(others), (number, manager), reply)
        for node in others:
            self._to(node, number, manager, operation, arguments, buffers, pending)
        if not pending.waits_for:
            reply()

    def _to(
        self,
        node: int,
        number: str,
        manager: int,
        operation: str,
        arguments: Any,
        buffers: list[Any],
        pending: _Pending,
    ) -> None:
        self._last += 1
        head = _encode((self._last, self._own_name, os.getpid(), number, manager, operation, arguments))
        try:
            name = self._service_of(node)
        except (DDictError, ConnectionError, TimeoutError) as error:
            log.warning("node %d cannot be told of a change (%s); its copy of a shard is given up", node, error)
            self._drop(number, manager, node)
            pending.waits_for.discard(node)
            return
        self._pending[self._last], self._sent_to[self._last] = pending, node
        self._send(0, name, head, buffers)

    def _service_of(self, node: int) -> Name:
        name = self._services.get(node)
        if name is None:
            name = self._ask(node, "shards.service", {})
            name = self._services[node] = (name[0], name[1], name[2])
        return name

    def _ask(self, node: int, operation: str, arguments: dict[str, Any]) -> Any:
        async def ask() -> Any:
            return await self._cluster.ask(node, operation, arguments)

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result(_PATIENCE)

    def acknowledged(self, which: int, value: Any, error: Any) -> None:
        """Another holder has done what it was sent, or could not."""
        pending = self._pending.pop(which, None)
        node = self._sent_to.pop(which, -1)
        if pending is None:
            return
        if error is not None:
            # It differs from here on.
            log.error("node %d cannot keep its copy of a shard (%s); it is given up", node, error[1])
            self._drop(*pending.shard, node)
        self._done(pending, node)

    def _done(self, pending: _Pending, node: int) -> None:
        if node in pending.waits_for:
            pending.waits_for.discard(node)
            if not pending.waits_for:
                pending.reply()

    # ---- the others

    def do(self, shard: Shard, number: str, operation: str, arguments: list[Any], buffers: list[Any]) -> None:
        """What the holder that decides has sent."""
        if operation == "_apply":
            OPERATIONS[arguments[0]](shard, arguments[1], buffers, lambda value, found: None)
        elif operation == "_load":
            shard.load(arguments[0], buffers)
        else:
            holders, newest, frozen = arguments
            shard.take_over(newest, frozen)
            self._copies.set_holders(number, shard.settings.manager, holders)

    # ---- losses

    def node_lost(self, node: int) -> None:
        """Whatever waits for that node waits no more; what it held is copied to another one."""
        self._services.pop(node, None)
        for number, shard in list(self._copies.held()):
            self._drop(number, shard.settings.manager, node)
        for which, sent_to in list(self._sent_to.items()):
            if sent_to == node:
                del self._sent_to[which]
                self._done(self._pending.pop(which), node)
        for number, shard in list(self._copies.held()):
            try:
                self._recruit(number, shard)
            except (DDictError, DestroyedError, ConnectionError, TimeoutError, RuntimeError) as error:
                log.warning("%s has fewer copies than it should have: %s", shard.where, error)

    def _drop(self, number: str, manager: int, node: int) -> None:
        holders = self._copies.holders(number, manager)
        if node in holders:
            self._copies.set_holders(number, manager, [holder for holder in holders if holder != node])

    def _recruit(self, number: str, shard: Shard) -> None:
        settings = shard.settings
        holders = self._copies.holders(number, settings.manager)
        if holders[:1] != [self._cluster.index]:
            return
        free = [node for node in self._cluster.active() if node not in holders]
        for node in free[: len(settings.holders) - len(holders)]:
            made = {**msgspec.to_builtins(settings), "folder": "", "holders": settings.holders}
            self._ask(node, "shards.create", {"number": number, "settings": made, "node": node})
            for names, entries in shard.export(_TOGETHER):
                loading = _Pending({node}, (number, settings.manager))
                self._to(node, number, settings.manager, "_load", (names,), entries, loading)
            holders = [*holders, node]
        self._copies.set_holders(number, settings.manager, holders)
        state = (holders, shard.newest, shard.is_frozen)
        self._to_others(number, settings.manager, "_holders", state, [], lambda: None)
