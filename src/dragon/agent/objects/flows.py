"""Messages that processes of other nodes put into channels of this one, as they arrive from those nodes' outboxes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from dragon._core import LockedError
from dragon.agent.wire.responses import error_of
from dragon.infrastructure.messages import Name
from dragon.runtime.handle import Channel
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.agents import FlowFailed, FlowTaken, Notice

__all__ = ["LOCKED", "LOCKED_LONG", "PARCEL", "WINDOW", "Flows", "Watcher"]

log = runtime_log("flows")

PARCEL = -1  # in place of the kind of one message: several small ones
# Bytes that may have left their node without being known to have arrived: so few that they stay in the caches.
WINDOW = 12 * 2**20
_ACKNOWLEDGED = WINDOW // 4

_MEMORY_RETRY_S = 0.02  # seconds until memory is asked for again
# Seconds until it is looked again whether a process has let go of the channel's lock, which doubles each time.
LOCKED, LOCKED_LONG = 0.002, 0.1
_IN_ORDER_S = 1.0  # seconds for which what comes after a message waits with it
_REMEMBERED = 256  # channels for which messages were lost, until somebody asks
_MEMORY_TIMEOUT_S = 10.0  # seconds without room for a message, after which it is lost and its sender is told


# Is told of a message: the other node, the number of the flow, that of the message in it, and its size in bytes.
Watcher = Callable[[int, int, int, int], None]


class _Flow:
    """One outbox's way into one channel."""

    def __init__(self, node: int, number: int, name: Name) -> None:
        self.node = node
        self.number = number
        self.name = name
        self._channel: Channel | None = None
        self.taken = 0
        self.messages = 0
        # What has arrived and is not in the channel yet. Of the first, a parcel, `start` bytes are.
        self.waiting: deque[tuple[int, Any]] = deque()
        self.start = 0
        self.full_since: float | None = None
        self.delay = LOCKED
        self.turn: asyncio.Future[None] | None = None
        self.orphaned = False  # nobody is left who could be told that something is lost
        self.closing = False

    @property
    def channel(self) -> Channel:
        """The channel, to which the flow is attached from then on. Raises DestroyedError where it is gone, and
        LockedError where a process that was stopped keeps others from attaching."""
        if self._channel is None:
            self._channel = Channel._attached(self.name)
        return self._channel

    def close(self) -> None:
        """Let go of the channel."""
        if self._channel is not None:
            self._channel._close()

    def put_first(self) -> None:
        """Put what has waited for the longest time. Raises MemoryError where there is no room, and LockedError where
        another process uses the channel, or keeps others from attaching to it."""
        kind, payload = self.waiting[0]
        if kind == PARCEL:
            while self.start < len(payload):
                self.start = self.channel._put_parcel(payload, self.start)
                self.full_since = None
        elif isinstance(payload, bytearray):
            self.channel._put_parts(kind, payload, 0)
        else:
            self.channel._put_loan(kind, payload)
        self.waiting.popleft()
        self.start, self.full_since, self.delay = 0, None, LOCKED


class Flows:
    """All flows into this node. `notify` tells another node how far one has come, or that it ended."""

    def __init__(self, notify: Callable[[int, Notice], None]) -> None:
        self._notify = notify
        self._flows: dict[tuple[int, int], _Flow] = {}  # by node, and the number that its outbox gave it
        self._lost: dict[Name, tuple[str, str]] = {}
        self.on_received: Watcher | None = None

    def open(self, node: int, number: int, name: Name) -> None:
        """A new flow of that node's, which keeps the channel. Raises DestroyedError where that is gone."""
        flow = _Flow(node, number, name)
        with suppress(LockedError):  # it is attached with the first message
            flow.channel  # noqa: B018
        self._flows[node, number] = flow

    def received(self, node: int, number: int, kind: int, payload: Any) -> asyncio.Future[None] | None:
        """Messages have arrived. Where there is no memory they wait for some, and so, once enough are under way, do
        those who send more; for those that cannot be put the sender is told why, once.

        Returns a future where a process has locked the channel: what that node sent later, as that a process has ended,
        is heard once it is done.
        """
        flow = self._flows.get((node, number))
        if flow is None:
            return None  # it was told
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
                loop = asyncio.get_running_loop()
                flow.full_since = flow.full_since or loop.time()
                if flow.orphaned or loop.time() - flow.full_since < _MEMORY_TIMEOUT_S:
                    loop.call_later(_MEMORY_RETRY_S, self._put, flow)
                    return
                self._fail(flow, MemoryError(f"{error}; messages that were on their way are lost"))
                return
            except LockedError:
                self._wait_for_lock(flow)
                return
            except Exception as error:
                self._fail(flow, error)
                return
            self._go_on(flow)
            flow.taken += size
            if flow.taken >= _ACKNOWLEDGED and not flow.closing:
                self._notify(flow.node, FlowTaken(flow.number, flow.taken))
                flow.taken = 0
        if flow.closing:
            self._forget(flow)

    def _wait_for_lock(self, flow: _Flow) -> None:
        loop = asyncio.get_running_loop()
        if flow.delay == LOCKED:
            flow.turn = loop.create_future()
            loop.call_later(_IN_ORDER_S, self._go_on, flow)
        loop.call_later(flow.delay, self._put, flow)
        flow.delay = min(flow.delay * 2, LOCKED_LONG)

    def _go_on(self, flow: _Flow) -> None:
        if flow.turn is not None:
            flow.turn.set_result(None)
            flow.turn = None

    def _fail(self, flow: _Flow, error: Exception) -> None:
        if isinstance(error, MemoryError):
            log.error("messages from node %d have no room here: %s", flow.node, error)
        if not flow.closing:
            self._notify(flow.node, FlowFailed(flow.number, error_of(error)))
        self._lost[flow.name] = error_of(error)
        if len(self._lost) > _REMEMBERED:
            del self._lost[next(iter(self._lost))]
        self._forget(flow)

    def why_lost(self, name: Name) -> tuple[str, str]:
        """Class and text of the error by which messages to a channel were lost since this was last asked; empty if none
        were."""
        return self._lost.pop(name, ("", ""))

    def orphan(self, node: int, number: int) -> None:
        """Nobody writes to its outbox any more. What was sent waits for room as long as it takes."""
        flow = self._flows.get((node, number))
        if flow is not None:
            flow.orphaned = True

    def close(self, node: int, number: int) -> None:
        """Its outbox is empty and gone. What waits for room is still put."""
        flow = self._flows.get((node, number))
        if flow is not None:
            flow.orphaned = flow.closing = True
            if not flow.waiting:
                self._forget(flow)

    def cut(self, node: int, number: int) -> None:
        """The connection on which that node's flows up to that number were opened broke there."""
        for key in [key for key in self._flows if key[0] == node and key[1] <= number]:
            self.close(*key)

    def _forget(self, flow: _Flow) -> None:
        self._go_on(flow)
        del self._flows[flow.node, flow.number]
        flow.close()

    def node_left(self, node: int) -> None:
        """Nothing comes from that node any more."""
        for key in [key for key in self._flows if key[0] == node]:
            self.close(*key)
