"""Messages that processes of other nodes put into channels of this one, as they arrive from those nodes' outboxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dragon.agent.responses import error_of
from dragon.infrastructure.messages import Name
from dragon.runtime.handle import Channel

__all__ = ["PARCEL", "WINDOW", "Flows", "Watcher"]

PARCEL = -1  # in place of the kind of one message: several small ones
WINDOW = 32 * 2**20  # bytes that may have left their node without being known to have arrived
_ACKNOWLEDGED = WINDOW // 16


# Is told of a message: the other node, the number of the flow, that of the message in it, and its size in bytes.
Watcher = Callable[[int, int, int, int], None]


class _Flow:
    """One outbox's way into one channel."""

    def __init__(self, node: int, channel: Channel) -> None:
        self.node = node
        self.channel = channel
        self.taken = 0
        self.messages = 0


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
        """Messages have arrived. For those that cannot be put the sender is told why, once."""
        flow = self._flows.get(number)
        if flow is None or flow.node != node:
            return  # it was told
        size = len(memoryview(payload))
        flow.messages += 1
        if self.on_received is not None:
            self.on_received(node, number, flow.messages, size)
        try:
            if kind == PARCEL:
                flow.channel._put_parcel(payload, 0)
            elif isinstance(payload, bytearray):
                flow.channel._put_parts(kind, payload, 0)
            else:
                flow.channel._put_loan(kind, payload)
        except Exception as error:
            self.close(node, number)
            self._notify(node, "flow_failed", {"number": number, "error": error_of(error)})
            return
        flow.taken += size
        if flow.taken >= _ACKNOWLEDGED:
            self._notify(node, "flow_taken", {"number": number, "size": flow.taken})
            flow.taken = 0

    def close(self, node: int, number: int) -> None:
        """Its outbox is empty and gone."""
        flow = self._flows.get(number)
        if flow is not None and flow.node == node:
            del self._flows[number]
            flow.channel._close()

    def node_left(self, node: int) -> None:
        """Nothing comes from that node any more."""
        for number in [number for number, flow in self._flows.items() if flow.node == node]:
            self.close(node, number)
