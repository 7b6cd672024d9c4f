"""Outgoing messages of this node's processes to channels of other nodes.

A process does not wait while a message is sent to another node. It puts it into a channel of its own node, the outbox,
from which this agent sends many at a time: small ones together in a parcel, large ones from the memory in which the
process wrote them. The bytes in flight are limited: a full outbox blocks its writers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from dragon._core import LockedError
from dragon.agent.objects.bell import Bell
from dragon.agent.objects.flows import LOCKED, LOCKED_LONG, PARCEL, WINDOW, Watcher
from dragon.agent.wire.links import Links
from dragon.agent.wire.responses import Answer, then
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.messages import Name
from dragon.runtime.handle import Channel
from dragon.runtime.protocol.agents import FlowArrived, FlowClosed, FlowCut, FlowOrphaned, OpenFlow
from dragon.runtime.remote import node_of

__all__ = ["Outboxes"]


_LARGEST = 32 * 1024  # bytes that are read at once


_CAPACITY = 256  # messages
_MEBIBYTES = 8  # few blocks, which stay in the processors' caches when they are reused
_PARCEL = 256 * 1024  # bytes
# Seconds for which the end of a process waits until its messages have arrived. Not longer: where there is no memory for
# them, their reader may be waiting for that end.
_ARRIVE_WITHIN_S = 10.0

# Returns the class and the text of an error, as far as they are known at the time of the call.
_Tell = Callable[[], tuple[str, str]]


class Outboxes:
    """The outboxes of one node, by the channels that they lead to."""

    def __init__(self, links: Links, bell: Bell) -> None:
        self._links = links
        self.bell = bell
        self._outboxes: dict[Name, _Outbox] = {}
        self._by_flow: dict[tuple[int, int], _Outbox] = {}
        self._used: dict[int, set[Name]] = {}  # by process id: the channels to which it writes
        self._arrivals: dict[int, list[asyncio.Future[None]]] = {}  # by process id, see under_way()
        self._leads_to: dict[Name, Name] = {}  # by the names of outboxes
        self.on_sent: Watcher | None = None
        self._last = 0
        self._failures: dict[Name, tuple[int, _Tell]] = {}  # by outbox: its destination node, and the error

    def open(self, pid: int, name: Name, droppable: bool) -> Name:
        """Return the outbox that leads to a channel, for a handle of that process. See OpenFlow for `droppable`."""
        outbox = self._outboxes.get(name)
        if outbox is None:
            outbox = self._outboxes[name] = _Outbox(self, self._links, name, droppable)
            self._leads_to[outbox.name] = name
            self._open_flow(name, outbox)
        outbox.users[pid] = outbox.users.get(pid, 0) + 1
        self._used.setdefault(pid, set()).add(name)
        return outbox.name

    def _open_flow(self, name: Name, outbox: _Outbox) -> None:
        """Open a flow. Messages may follow at once, since links keep the order."""
        self._last += 1
        self._by_flow[node_of(name), self._last] = outbox
        opened = self._links.call(node_of(name), OpenFlow(self._last, name, outbox.droppable))
        opened.add_done_callback(lambda future: self._opened(name, outbox, future))
        outbox.open(self._last)

    def _opened(self, name: Name, outbox: _Outbox, future: asyncio.Future[Answer]) -> None:
        error = None if future.cancelled() else future.exception()
        if not future.cancelled() and error is None:
            if outbox.flow:
                outbox.confirmed = True
            elif not outbox.ended:
                self._open_flow(name, outbox)  # the connection broke after the reply had come, and nothing was sent yet
            return
        if outbox.ended:
            return
        node = node_of(name)
        self._by_flow.pop((node, outbox.flow), None)
        outbox.flow = 0
        if isinstance(error, NodeLostError) and node in self._links.unreachable:
            self._give_up(name, outbox, self._lost_on_the_way(node, self._links.unreachable[node]))
        elif isinstance(error, NodeLostError) and node not in self._links.lost:
            self._open_flow(name, outbox)  # only the connection broke, and nothing was sent yet
        else:
            self._give_up(name, outbox, _nothing)  # the next operation on the channel itself raises the reason

    def why_gone(self, outbox: Name) -> asyncio.Future[tuple[str, str]]:
        """Return a future of the error by which messages in an outbox were lost; empty if none were."""
        node, tell = self._failures.get(outbox, (self._links.index, _nothing))
        self._links.probe(node)
        return then(self._links.settled(node), lambda _: tell())

    def flush(self) -> None:
        """Send pending messages before something else is sent to another node."""
        self.bell.answer()

    def lend(self, leads_to: Name, head: bytes, buffers: list[memoryview]) -> None:
        """Send a message with this head for each buffer, after the pending ones. Buffers are kept until they
        are sent."""
        outbox = self._outboxes.get(leads_to)
        if outbox is not None:  # else the receiver, or the connection to it, is lost
            outbox.lent.extend((head, buffer) for buffer in buffers)
            outbox.send()

    def taken(self, node: int, number: int, size: int) -> None:
        """Note that `size` more bytes have arrived."""
        outbox = self._by_flow.get((node, number))
        if outbox is not None:
            outbox.arrived(size)

    def failed(self, node: int, number: int, error: tuple[str, str]) -> None:
        """Handle that messages could not be put into the channel."""
        outbox = self._by_flow.pop((node, number), None)
        if outbox is not None:
            outbox.flow = 0
            self._give_up(outbox.leads_to, outbox, lambda: error)

    def stalled(self, node: int, number: int, error: tuple[str, str] | None) -> None:
        """Handle that messages wait for memory for long, so that no more are accepted, or (None) no longer do."""
        outbox = self._by_flow.get((node, number))
        if outbox is None:
            return
        if error is None:
            self._failures.pop(outbox.name, None)
        else:
            told = error
            self._failures[outbox.name] = node, lambda: told
        outbox.channel._refuse(error is not None)

    def forget(self, node: int, number: int) -> None:
        """Remove a flow whose messages have all been sent."""
        del self._by_flow[node, number]

    def dropped(self, pid: int, outbox_name: Name) -> None:
        """Handle that a process has dropped a handle for which it had that outbox."""
        name = self._leads_to.get(outbox_name)
        if name is None:
            return  # it has failed
        users = self._outboxes[name].users
        if users.get(pid, 0) > 1:
            users[pid] -= 1
        else:
            self.left(pid, name)

    def left(self, pid: int, name: Name | None = None) -> None:
        """Handle that a process has ended, or has no handle of a channel any more. Its messages are sent before others
        are notified."""
        used = self._used.get(pid, set())
        for known in list(used) if name is None else used & {name}:
            used.discard(known)
            outbox = self._outboxes.get(known)
            if outbox is not None and pid in outbox.users:
                del outbox.users[pid]
                if outbox.users:
                    outbox.send()
                else:
                    del self._outboxes[known], self._leads_to[outbox.name]
                    outbox.close()
                self._follow(pid, outbox)
        if not used:
            self._used.pop(pid, None)

    def _follow(self, pid: int, outbox: _Outbox) -> None:
        """Note which messages of a process have not arrived."""
        arrival = outbox.arrival()
        if arrival is None:
            return
        self._arrivals.setdefault(pid, []).append(arrival)

        def forget(_: object) -> None:
            self._arrivals[pid].remove(arrival)
            if not self._arrivals[pid]:
                del self._arrivals[pid]

        arrival.add_done_callback(forget)

    def under_way(self, pid: int) -> list[asyncio.Future[None]]:
        """Return futures that are done once all messages of a process that has ended have arrived, or are lost."""
        return list(self._arrivals.get(pid, ()))

    def broken(self, node: int, reason: str) -> None:
        """Handle that the connection to a node broke, or the node is lost: messages in flight may be lost."""
        tell = self._lost_on_the_way(node, reason)
        keys = [key for key in self._by_flow if key[0] == node]
        for key in keys:
            outbox = self._by_flow.pop(key)
            outbox.flow = 0
            if outbox.confirmed or outbox.messages:
                self._give_up(outbox.leads_to, outbox, tell)
        if keys:  # sent over the next connection
            self._links.notify(node, FlowCut(keys[-1][1]))

    def _lost_on_the_way(self, node: int, reason: str) -> _Tell:
        def tell() -> tuple[str, str]:
            happened = self._links.what_happened(node, reason)
            return NodeLostError.__name__, f"{happened}; messages in flight to it may be lost"

        return tell

    def _give_up(self, name: Name, outbox: _Outbox, tell: _Tell) -> None:
        if self._outboxes.get(name) is outbox:
            del self._outboxes[name], self._leads_to[outbox.name]
        self._failures[outbox.name] = node_of(name), tell
        outbox.end()


class _Outbox:
    """A channel of this node that leads to one of another node. `users` has the number of handles of each process that
    writes to it."""

    def __init__(self, outboxes: Outboxes, links: Links, leads_to: Name, droppable: bool) -> None:
        self._outboxes = outboxes
        self.leads_to = leads_to
        self.droppable = droppable
        self.channel = Channel(_CAPACITY, mebibytes=_MEBIBYTES)
        self.name = self.channel._name()
        self.users: dict[int, int] = {}
        self.lent: deque[tuple[bytes, memoryview]] = deque()
        self.flow = 0
        self.confirmed = False  # the other node has the channel
        self.messages = 0  # that were sent
        self._links = links
        self._node = node_of(leads_to)
        self._under_way = 0
        self.ended = self._closing = False
        self._again: asyncio.TimerHandle | None = None
        self._delay = LOCKED
        # Whose arrival is asked for once this number of messages was taken out of the channel.
        self._awaited: deque[tuple[int, asyncio.Future[None]]] = deque()
        outboxes.bell.listen(self.name[0], self.send)
        self.channel._ring_agent()

    def open(self, flow: int) -> None:
        """Start sending over a flow."""
        self.flow = flow
        if self._closing:
            self.close()
        else:
            self.send()

    def send(self) -> None:
        """Send pending messages, as far as the window permits."""
        self._send_pending()
        if self._awaited:
            self._follow_sent()

    def _send_pending(self) -> None:
        if not self.flow or self.ended:
            return
        while self._under_way < WINDOW:
            try:
                parcel, kind, loan = self.channel._take_parcel(_PARCEL)
            except LockedError:
                self._look_again()
                return
            self._delay = LOCKED
            if parcel:
                self._pass(PARCEL, parcel)
            if loan is not None:
                self._pass(kind, memoryview(loan))
            if not parcel and loan is None:
                if self.lent:
                    head, memory = self.lent.popleft()
                    kind, start = Channel._before_frame(head, len(memory))
                    self._pass(kind, memory, start)
                    continue
                if self._closing:
                    self.end()
                return

    def arrival(self) -> asyncio.Future[None] | None:
        """Return a future that is done once the messages that were put up to now are in the other channel, or lost;
        None if there are none."""
        there = 0 if self.ended else self.channel._size()
        if not there and not (self.flow and self.messages):
            return None
        loop = asyncio.get_running_loop()
        arrival = loop.create_future()
        timer = loop.call_later(_ARRIVE_WITHIN_S, _release, arrival)
        arrival.add_done_callback(lambda _: timer.cancel())
        self._awaited.append((self.channel._taken() + there if there else 0, arrival))
        self._follow_sent()
        return arrival

    def _follow_sent(self) -> None:
        """Ask the other node for the arrival of messages that are sent now."""
        while self._awaited and (self.ended or self._awaited[0][0] <= self.channel._taken()):
            _, arrival = self._awaited.popleft()
            if self.flow:
                there = self._links.call(self._node, FlowArrived(self.flow))
                there.add_done_callback(partial(_release_after, arrival))
            else:
                _release(arrival)

    def _look_again(self) -> None:
        """Retry later, as a process that is putting a message holds the lock."""
        if self._again is None:
            self._again = asyncio.get_running_loop().call_later(self._delay, self._send_again)
            self._delay = min(self._delay * 2, LOCKED_LONG)

    def _send_again(self) -> None:
        self._again = None
        self.send()

    def _pass(self, kind: int, data: Any, start: bytes = b"") -> None:
        size = len(start) + len(data)
        self._under_way += size
        self.messages += 1
        if self._outboxes.on_sent is not None:
            self._outboxes.on_sent(self._node, self.flow, self.messages, size)
        self._links.send_messages(self._node, self.flow, kind, data, start)

    def arrived(self, size: int) -> None:
        """Advance the window by `size` bytes."""
        was_full = self._under_way >= WINDOW
        self._under_way -= size
        if was_full:
            self.send()

    def close(self) -> None:
        """Send the remaining messages, then end: no process writes to it any more."""
        self._closing = True
        self.send()
        if self.flow and not self.ended:
            self._links.notify(self._node, FlowOrphaned(self.flow))

    def end(self) -> None:
        """Destroy the channel. A process that puts afterwards finds it destroyed, and requests the reason."""
        if self.ended:
            return
        self.ended = True
        self.lent.clear()
        self._outboxes.bell.ignore(self.name[0])
        self.channel._destroy()
        self.channel._close()
        if self.flow:
            self._outboxes.forget(self._node, self.flow)
            self._links.notify(self._node, FlowClosed(self.flow))
        self._follow_sent()


def _release(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _release_after(future: asyncio.Future[None], answered: asyncio.Future[Answer]) -> None:
    if not answered.cancelled():
        answered.exception()  # the connection broke, or the node is lost
    _release(future)


def _nothing() -> tuple[str, str]:
    return "", ""
