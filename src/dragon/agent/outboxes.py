"""Messages of this node's processes to channels of other nodes.

A process does not wait while a message goes to another node. It puts it into a channel of its own node, the outbox,
from which this agent sends many at a time: small ones together in a parcel, large ones from the memory that the process
wrote them to. What is under way is bounded: a full outbox lets its writers wait.
"""

from __future__ import annotations

import asyncio
from typing import Any

from dragon.agent.distant import Call, DistantChannel
from dragon.infrastructure.messages import Name
from dragon.runtime.handle import Channel
from dragon.runtime.remote import node_of

__all__ = ["Outboxes"]

_CAPACITY = 256  # messages
_PARCEL = 256 * 1024  # bytes
_WINDOW = 8 * 2**20  # bytes that have left and have not arrived


class Outboxes:
    """The outboxes of one node, by the channels that they lead to."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._outboxes: dict[Name, _Outbox] = {}

    def open(self, pid: int, name: Name) -> Name:
        """The outbox that leads to a channel, for that process."""
        outbox = self._outboxes.get(name)
        if outbox is None or outbox.broken:
            outbox = self._outboxes[name] = _Outbox(self._call, name)
        outbox.users.add(pid)
        return outbox.channel._name()

    def flush(self, node: int) -> None:
        """Send what is there, before something else goes to that node."""
        for name, outbox in self._outboxes.items():
            if node_of(name) == node:
                outbox.send()

    def left(self, pid: int, name: Name | None = None) -> None:
        """A process has ended, or dropped its handle of a channel."""
        for known, outbox in list(self._outboxes.items()):
            if name in (known, None) and pid in outbox.users:
                outbox.users.discard(pid)
                if not outbox.users:
                    del self._outboxes[known]
                    outbox.close()

    def node_left(self, node: int) -> None:
        """A node is gone: whoever writes there is told."""
        for name, outbox in list(self._outboxes.items()):
            if node_of(name) == node:
                del self._outboxes[name]
                outbox.give_up()


class _Outbox:
    """One channel here that leads to one there. `users` are the processes that write to it."""

    def __init__(self, call: Call, name: Name) -> None:
        self.channel = Channel(_CAPACITY)
        self.users: set[int] = set()
        self.broken = False
        self._there = DistantChannel(call, name)
        self._loop = asyncio.get_running_loop()
        self._under_way = 0
        self._closing = False
        self._bell = self.channel._fileno()
        self._loop.add_reader(self._bell, self.send)

    def send(self) -> None:
        """Send what is there, as far as the window goes."""
        while not self.broken and self._under_way < _WINDOW:
            parcel, kind, loan = self.channel._take_parcel(_PARCEL)
            if parcel:
                self._pass("_put_parcel", [0], parcel)
            if loan is not None:
                self._pass("_put_loan", [kind], memoryview(loan))
            if not parcel and loan is None:
                break
        else:
            self._loop.remove_reader(self._bell)
        if self._closing and not self._under_way:
            self._end()

    def _pass(self, method: str, given: list[Any], data: Any) -> None:
        size = len(data)
        self._under_way += size

        def arrived(future: asyncio.Future[Any]) -> None:
            was_full = self._under_way >= _WINDOW
            self._under_way -= size
            if future.cancelled() or future.exception() is not None:
                self.give_up()
            elif was_full and self._under_way < _WINDOW and not self.broken:
                self._loop.add_reader(self._bell, self.send)
                self.send()
            elif self._closing:
                self.send()

        self._there.ask(method, *given, timeout=None, payload=data).add_done_callback(arrived)

    def close(self) -> None:
        """Send what is left, then end: nobody writes to it any more."""
        self._closing = True
        self.send()

    def give_up(self) -> None:
        """What was to be sent cannot arrive. The next put finds the outbox gone, and asks why."""
        if not self.broken:
            self._end()

    def _end(self) -> None:
        if self.broken:
            return
        self.broken = True
        self._loop.remove_reader(self._bell)
        self.channel._destroy()
        self.channel._close()
        self._there.close()
