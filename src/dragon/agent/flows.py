"""Messages that processes of other nodes put into channels of this one, as they arrive from those nodes' outboxes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from dragon._core import LockedError
from dragon.agent.responses import error_of
from dragon.infrastructure.messages import Name
from dragon.runtime.handle import Channel
from dragon.runtime.log import runtime_log

__all__ = ["PARCEL", "WINDOW", "Flows", "Watcher"]

log = runtime_log("flows")

PARCEL = -1  # in place of the kind of one message: several small ones
# Bytes that may have left their node without being known to have arrived: so few that they stay in the caches.
WINDOW = 12 * 2**20
_ACKNOWLEDGED = WINDOW // 4

_LOOK_AGAIN = 0.02  # seconds until memory is asked for again
_LONGEST = 1.0  # seconds until it is seen again whether a process has let go of the channel's lock
_PATIENCE = 10.0  # seconds without room for a message, after which it is lost and its sender is told


# Is told of a message: the other node, the number of the flow, that of the message in it, and its size in bytes.
Watcher = Callable[[int, int, int, int], None]


class _Flow:
    """One outbox's way into one channel."""

    def __init__(self, node: int, channel: Channel) -> None:
        self.node = node
        self.channel = channel
        self.taken = 0
        self.messages = 0
        # What has arrived and is not in the channel yet. Of the first, a parcel, `start` bytes are.
        self.waiting: deque[tuple[int, Any]] = deque()
        self.start = 0
        self.full_since: float | None = None
        self.delay = _LOOK_AGAIN
        self.orphaned = False  # nobody is left who could be told that something is lost
        self.closing = False

    def put_first(self) -> None:
        """Put what has waited for the longest time. Raises MemoryError where there is no room, and LockedError where
        another process uses the channel."""
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
        self.start, self.full_since, self.delay = 0, None, _LOOK_AGAIN


class Flows:
    """All flows into this node. `notify` tells another node how far one has come, or that it ended."""

    def __init__(self, notify: Callable[[int, str, dict[str, Any]], None]) -> None:
        self._notify = notify
        self._flows: dict[int, _Flow] = {}
        self._last = 0
        self.on_received: Watcher | None = None

    def open(self, node: int, name: Name) -> int:
        """A new flow, which keeps the channel. Raises DestroyedError where that is gone."""
        self._last += 1
        self._flows[self._last] = _Flow(node, Channel._attached(name))
        return self._last

    def received(self, node: int, number: int, kind: int, payload: Any) -> None:
        """Messages have arrived. Where there is no memory they wait for some, and so, once enough are under way, do
        those who send more; for those that cannot be put the sender is told why, once."""
        flow = self._flows.get(number)
        if flow is None or flow.node != node:
            return  # it was told
        flow.messages += 1
        if self.on_received is not None:
            self.on_received(node, number, flow.messages, len(memoryview(payload)))
        flow.waiting.append((kind, payload))
        if len(flow.waiting) == 1:
            self._put(number)

    def _put(self, number: int) -> None:
        flow = self._flows.get(number)
        while flow is not None and flow.waiting:
            size = len(memoryview(flow.waiting[0][1]))
            try:
                flow.put_first()
            except MemoryError as error:
                loop = asyncio.get_running_loop()
                flow.full_since = flow.full_since or loop.time()
                if flow.orphaned or loop.time() - flow.full_since < _PATIENCE:
                    loop.call_later(_LOOK_AGAIN, self._put, number)
                    return
                self._fail(number, flow, MemoryError(f"{error}; messages that were on their way are lost"))
                return
            except LockedError:
                asyncio.get_running_loop().call_later(flow.delay, self._put, number)
                flow.delay = min(flow.delay * 2, _LONGEST)
                return
            except Exception as error:
                self._fail(number, flow, error)
                return
            flow.taken += size
            if flow.taken >= _ACKNOWLEDGED and not flow.closing:
                self._notify(flow.node, "flow_taken", {"number": number, "size": flow.taken})
                flow.taken = 0
        if flow is not None and flow.closing:
            self._forget(number, flow)

    def _fail(self, number: int, flow: _Flow, error: Exception) -> None:
        if isinstance(error, MemoryError):
            log.error("messages from node %d have no room here: %s", flow.node, error)
        if not flow.closing:
            self._notify(flow.node, "flow_failed", {"number": number, "error": error_of(error)})
        self._forget(number, flow)

    def orphan(self, node: int, number: int) -> None:
        """Nobody writes to its outbox any more. What was sent waits for room as long as it takes."""
        flow = self._flows.get(number)
        if flow is not None and flow.node == node:
            flow.orphaned = True

    def close(self, node: int, number: int) -> None:
        """Its outbox is empty and gone. What waits for room is still put."""
        flow = self._flows.get(number)
        if flow is not None and flow.node == node:
            flow.orphaned = flow.closing = True
            if not flow.waiting:
                self._forget(number, flow)

    def _forget(self, number: int, flow: _Flow) -> None:
        del self._flows[number]
        flow.channel._close()

    def node_left(self, node: int) -> None:
        """Nothing comes from that node any more."""
        for number in [number for number, flow in self._flows.items() if flow.node == node]:
            self.close(node, number)
