"""Incoming flows: messages that processes of other nodes put into channels of this node, as they arrive from those
nodes' outboxes."""

from __future__ import annotations

import asyncio
import queue
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dragon._core import LockedError
from dragon.agent.wire.responses import error_of
from dragon.infrastructure.messages import Name
from dragon.runtime.handle import Channel
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.agents import FlowFailed, FlowStalled, FlowTaken, Notice

__all__ = ["LOCKED", "LOCKED_LONG", "PARCEL", "WINDOW", "Flows", "Watcher"]

log = runtime_log("flows")

PARCEL = -1  # instead of the kind of a message: several small messages
# Unacknowledged bytes in flight from a node: few enough to stay in the caches.
WINDOW = 12 * 2**20
_ACKNOWLEDGED = WINDOW // 4

_MEMORY_RETRY_S = 0.02  # seconds between two attempts to allocate memory
# Seconds between two checks whether the channel's lock was released, or whether it has room: the first delay, which is
# doubled each time, and the longest.
LOCKED, LOCKED_LONG = 0.002, 0.1
_IN_ORDER_S = 1.0  # seconds for which later messages of the node wait for a message
_REMEMBERED = 256  # channels for which the reason of lost messages is kept
_MEMORY_TIMEOUT_S = 10.0  # seconds without space for a message, after which its sender is notified


# Called with the other node, the number of the flow, the number of the message in it, and its size in bytes.
Watcher = Callable[[int, int, int, int], None]


class _Flow:
    """The receiving end of one outbox, which puts into one channel."""

    def __init__(self, node: int, number: int, name: Name, droppable: bool) -> None:
        self.node = node
        self.number = number
        self.name = name
        self.droppable = droppable
        self._channel: Channel | None = None
        self.taken = 0
        self.messages = 0
        # What has arrived and is not in the channel yet. Of the first, if it is a parcel, `start` bytes are.
        self.waiting: deque[tuple[int, Any]] = deque()
        self.start = 0
        self.no_memory_since: float | None = None
        self.stalled = False  # the sender was told that there is no memory
        self.delay = LOCKED
        self.room_delay = LOCKED
        self.turn: asyncio.Future[None] | None = None
        self.limit: asyncio.TimerHandle | None = None  # of the turn
        self.awaited: list[asyncio.Future[None]] = []  # each is done once nothing waits
        self.orphaned = False  # no sender is left that could be notified of lost messages
        self.closing = False

    @property
    def channel(self) -> Channel:
        """The channel, to which the flow is attached on first use. Raises DestroyedError if it no longer exists, and
        LockedError if a stopped process prevents attaching."""
        if self._channel is None:
            self._channel = Channel._attached(self.name)
        return self._channel

    def release(self) -> None:
        """Complete the futures of those who wait until nothing waits."""
        awaited, self.awaited = self.awaited, []
        for each in awaited:
            if not each.done():
                each.set_result(None)

    def close(self) -> None:
        """Release the channel."""
        self.release()
        if self._channel is not None:
            self._channel._close()

    def put_first(self) -> None:
        """Put the oldest pending messages. Raises Full if the channel has as many bytes as it may have, MemoryError if
        there is no space, and LockedError if another process has locked the channel, or prevents attaching."""
        kind, payload = self.waiting[0]
        if kind == PARCEL:
            while self.start < len(payload):
                self.start = self.channel._put_parcel(payload, self.start)
                self.no_memory_since, self.room_delay = None, LOCKED
        elif isinstance(payload, bytearray):
            self.channel._put_parts(kind, payload, 0)
        else:
            self.channel._put_loan(kind, payload)
        self.waiting.popleft()
        self.start, self.no_memory_since, self.delay, self.room_delay = 0, None, LOCKED, LOCKED


class Flows:
    """All flows into this node. `notify` notifies another node of the progress of a flow, or that it failed."""

    def __init__(self, notify: Callable[[int, Notice], None]) -> None:
        self._notify = notify
        self._flows: dict[tuple[int, int], _Flow] = {}  # by node, and the number that its outbox gave it
        self._lost: dict[Name, tuple[str, str]] = {}
        self.on_received: Watcher | None = None

    def open(self, node: int, number: int, name: Name, droppable: bool = False) -> None:
        """Open a flow from a node, which keeps the channel alive. Raises DestroyedError if it no longer exists.

        `droppable` messages are lost after ten seconds without memory for them.
        """
        flow = _Flow(node, number, name, droppable)
        with suppress(LockedError):  # then it is attached with the first message
            flow.channel  # noqa: B018
        self._flows[node, number] = flow

    def received(self, node: int, number: int, kind: int, payload: Any) -> asyncio.Future[None] | None:
        """Handle messages that have arrived.

        If there is no room in the channel, or no memory, they stay pending, and once enough are in flight, senders wait
        too; if they cannot be put, the sender is notified of the reason once. Returns a future if a process has locked
        the channel: later messages of that node, such as the end of a process, are handled after it is done.
        """
        flow = self._flows.get((node, number))
        if flow is None:
            return None  # it has failed, of which the sender was notified
        flow.messages += 1
        if self.on_received is not None:
            self.on_received(node, number, flow.messages, len(memoryview(payload)))
        flow.waiting.append((kind, payload))
        if len(flow.waiting) == 1:
            self._put(flow)
        return flow.turn

    def _put(self, flow: _Flow) -> None:
        while flow.waiting:
            size = len(memoryview(flow.waiting[0][1]))
            try:
                flow.put_first()
            except MemoryError as error:
                self._wait_for_memory(flow, error)
                return
            except queue.Full:
                # Whatever a reader takes makes room, so the delay follows the pace of the readers.
                flow.no_memory_since = None
                self._go_on(flow)
                asyncio.get_running_loop().call_later(flow.room_delay, self._put, flow)
                flow.room_delay = min(flow.room_delay * 2, LOCKED_LONG)
                return
            except LockedError:
                self._wait_for_lock(flow)
                return
            except Exception as error:
                self._fail(flow, error)
                return
            self._go_on(flow)
            if flow.stalled:
                flow.stalled = False
                self._notify(flow.node, FlowStalled(flow.number, None))
            flow.taken += size
            if flow.taken >= _ACKNOWLEDGED and not flow.closing:
                self._notify(flow.node, FlowTaken(flow.number, flow.taken))
                flow.taken = 0
        flow.release()
        if flow.closing:
            self._forget(flow)

    def _wait_for_memory(self, flow: _Flow, error: MemoryError) -> None:
        loop = asyncio.get_running_loop()
        flow.no_memory_since = flow.no_memory_since or loop.time()
        too_long = not flow.orphaned and loop.time() - flow.no_memory_since >= _MEMORY_TIMEOUT_S
        if too_long and flow.droppable:
            self._fail(flow, MemoryError(f"{error}; messages in flight are lost"))
            return
        if too_long and not flow.stalled:
            flow.stalled = True
            log.error("there is no memory for messages from node %d, which wait until there is: %s", flow.node, error)
            told = MemoryError(f"{error}; this message was not sent, earlier ones wait until there is memory")
            self._notify(flow.node, FlowStalled(flow.number, error_of(told)))
        loop.call_later(_MEMORY_RETRY_S, self._put, flow)

    def _wait_for_lock(self, flow: _Flow) -> None:
        loop = asyncio.get_running_loop()
        if flow.delay == LOCKED:
            flow.turn = loop.create_future()
            flow.limit = loop.call_later(_IN_ORDER_S, self._go_on, flow)
        loop.call_later(flow.delay, self._put, flow)
        flow.delay = min(flow.delay * 2, LOCKED_LONG)

    def _go_on(self, flow: _Flow) -> None:
        if flow.limit is not None:
            flow.limit.cancel()
            flow.limit = None
        if flow.turn is not None:
            flow.turn.set_result(None)
            flow.turn = None

    def _fail(self, flow: _Flow, error: Exception) -> None:
        if isinstance(error, MemoryError):
            log.error("there is no memory for messages from node %d: %s", flow.node, error)
        if not flow.closing:
            self._notify(flow.node, FlowFailed(flow.number, error_of(error)))
        self._lost[flow.name] = error_of(error)
        if len(self._lost) > _REMEMBERED:
            del self._lost[next(iter(self._lost))]
        self._forget(flow)

    def why_lost(self, name: Name) -> tuple[str, str]:
        """Return class and text of the error by which messages to a channel were lost since the last call; empty if
        none were."""
        return self._lost.pop(name, ("", ""))

    def arrived(self, node: int, number: int) -> asyncio.Future[None] | None:
        """Return a future that is done once all messages of a flow up to now are in the channel, or lost; None if they
        are."""
        flow = self._flows.get((node, number))
        if flow is None or not flow.waiting:
            return None
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        flow.awaited.append(future)
        return future

    def orphan(self, node: int, number: int) -> None:
        """Note that no process writes to the outbox of a flow any more. What was sent waits for space without a
        timeout."""
        flow = self._flows.get((node, number))
        if flow is not None:
            flow.orphaned = True

    def close(self, node: int, number: int) -> None:
        """Close a flow whose outbox is empty and closed. Pending messages are still put."""
        flow = self._flows.get((node, number))
        if flow is not None:
            flow.orphaned = flow.closing = True
            if not flow.waiting:
                self._forget(flow)

    def cut(self, node: int, number: int) -> None:
        """Close a node's flows up to that number, because the connection on which they were opened broke there."""
        for key in [key for key in self._flows if key[0] == node and key[1] <= number]:
            self.close(*key)

    def _forget(self, flow: _Flow) -> None:
        self._go_on(flow)
        del self._flows[flow.node, flow.number]
        flow.close()

    def node_left(self, node: int) -> None:
        """Close all flows of a node."""
        for key in [key for key in self._flows if key[0] == node]:
            self.close(*key)
