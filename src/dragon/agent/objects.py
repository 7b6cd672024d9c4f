"""What processes of this node need of Python's part of the agent to use objects of other nodes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from dragon import _core
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.start_request import Name
from dragon.runtime.protocol.objects import Announce, OpenOutbox, OpenProxy, WhyLost
from dragon.runtime.protocol.request import Caller
from dragon.runtime.remote import node_of
from dragon.runtime.rpc import serves, serves_for

if TYPE_CHECKING:
    from dragon.agent.wire.links import Links


class RemoteObjects:
    """The processes of this node that have asked other nodes for something, and their outboxes and proxies."""

    def __init__(self, links: Links) -> None:
        self._links = links
        self._loop = asyncio.get_running_loop()
        # Called after an operation with the process id, the node, the operation, and when it began.
        self.on_operated: Callable[[int, int, str, float], None] | None = None
        self._ends: dict[int, int] = {}  # by process id: a pidfd, which is readable once it has ended
        self._proxies: dict[Name, asyncio.Future[Name]] = {}  # by the channels of other nodes: those not known yet
        self._arriving: dict[int, asyncio.Future[None]] = {}  # by process id, see left()
        self._links.on_event |= {
            "Proxy": self._proxy_known,
            "Arrived": self._arrived,
            "Client": lambda event: self._note_client(event[2]),
            "Operated": self._operated,
        }

    @serves(WhyLost)
    def _why_lost(self, name: Name) -> tuple[str, str]:
        return self._links.wire.why_lost(name)

    @serves(Announce)
    async def _announce(self, names: list[Name]) -> None:
        await self._links.announce(self._links.index, names)

    def _operated(self, event: _core.WireEvent) -> None:
        _, node, caller, since, _, _, what, _ = event
        if self.on_operated is not None:
            self.on_operated(caller, node, what, time.time() - (time.monotonic() - since / 1e9))

    @serves_for(OpenOutbox)
    def outbox(self, caller: Caller, name: Name, droppable: bool = False) -> Name:
        """Return a channel of this node whose messages go to a channel of another node. Raises NodeLostError."""
        self._check_not_lost(node_of(name))
        self._note_client(caller.pid)
        return self._links.wire.open_outbox(caller.pid, name, droppable)

    @serves_for(OpenProxy)
    def proxy(self, caller: Caller, name: Name) -> Name | asyncio.Future[Name]:
        """Return a channel that can be read while a channel of another node can, or a future. Raises NodeLostError."""
        self._check_not_lost(node_of(name))
        self._note_client(caller.pid)
        proxy = self._links.wire.open_proxy(caller.pid, name)
        if proxy[0]:
            return proxy
        return asyncio.shield(self._proxies.setdefault(name, self._loop.create_future()))

    def _proxy_known(self, event: _core.WireEvent) -> None:
        _, node, offset, generation, name, failed, reason, _ = event
        known = self._proxies.pop(name, None)
        if known is None or known.done():
            return
        if failed:
            known.set_exception(NodeLostError(self._links.what_happened(node, reason)))
        else:
            known.set_result((offset, generation, self._links.index << 8))

    def _check_not_lost(self, node: int) -> None:
        if node in self._links.lost:
            raise NodeLostError(self._links.what_happened(node, ""))

    def _note_client(self, caller: int) -> None:
        if caller in self._ends or caller == os.getpid():
            return
        try:
            self._ends[caller] = _core.open_process(caller)
        except ProcessLookupError:
            self._loop.call_soon(self.left, caller)
        else:
            self._loop.add_reader(self._ends[caller], self.left, caller)

    def left(self, caller: int) -> asyncio.Future[None] | None:
        """Notify the nodes that a process has asked of its end, before its exit code can be reported. Returns a future
        that is done once all its messages have arrived, or are lost; None if they are."""
        fd = self._ends.pop(caller, -1)
        if fd >= 0:
            self._loop.remove_reader(fd)
            os.close(fd)
        if self._links.wire.left(caller):
            self._arriving[caller] = self._loop.create_future()
        return self._arriving.get(caller)

    def _arrived(self, event: _core.WireEvent) -> None:
        arriving = self._arriving.pop(event[2], None)
        if arriving is not None and not arriving.done():
            arriving.set_result(None)
