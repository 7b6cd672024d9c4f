"""Connections between agents: one for each pair of nodes, made when it is first needed.

A frame is a header (its size and the size of what follows, 4 and 8 bytes), a msgpack part and raw bytes, which are
received straight into place. Requests are numbered, their answers come in any order. A flag in the header says that the
raw bytes come over the fabric that both agents have; frames are taken in the order they were sent in all the same.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from dragon import _core
from dragon.agent.bulk import Fabric, Greeting, InLink, Lane
from dragon.agent.control import watch_silence
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.membership import Member
from dragon.infrastructure.messages import encode
from dragon.runtime.credentials import peer_index
from dragon.runtime.log import runtime_log

__all__ = ["Answer", "Links", "error_of", "then"]

log = runtime_log("links")

_HEADER = struct.Struct("<IQ")
_LARGEST_PART = 64 * 2**20
_LARGEST_PAYLOAD = 2**36
_CONNECT_TIMEOUT = 10.0
_JOINED = 32 * 1024  # bytes of the largest payload that is copied to be written with others
_LARGE = 64 * 1024
_BULK = 256 * 1024  # bytes of the smallest payload that goes over a fabric
_BESIDE = 1 << 63  # in the size of a payload: it does
_REQUEST, _VALUE, _ERROR, _NOTICE, _CANCEL, _MESSAGES, _GREETING = range(7)

# What came back: a value, and raw bytes.
Answer = tuple[Any, Any]
# (node, operation, arguments, payload, respond) -> how to cancel. `respond` takes a value and a payload, or an error.
Serve = Callable[[int, str, dict[str, Any], Any, Callable[..., None]], Callable[[], None] | None]


def error_of(error: BaseException) -> tuple[str, str]:
    """An exception as it is sent: its class's name and its text."""
    kind = error.kind if isinstance(error, RemoteError) else type(error).__name__
    return kind, str(error)


def _memory(part: Any, size: int) -> Any:
    """Where a payload is received: a large message straight in the arena."""
    to_arena = part[0] == _VALUE or (part[0] == _MESSAGES and part[2] >= 0)
    return _core.Loan(size) if to_arena and size >= _LARGE else bytearray(size)


def then(future: asyncio.Future[Any], change: Callable[[Any], Any]) -> asyncio.Future[Any]:
    """A future of what `change` makes of another one's result; cancelling it cancels the other one."""
    result = future.get_loop().create_future()

    def done(source: asyncio.Future[Any]) -> None:
        error = None if source.cancelled() else source.exception()
        if result.done():
            return
        if source.cancelled():
            result.cancel()
        elif error is not None:
            result.set_exception(error)
        else:
            result.set_result(change(source.result()))

    def cancelled(target: asyncio.Future[Any]) -> None:
        if target.cancelled():
            future.cancel()

    future.add_done_callback(done)
    result.add_done_callback(cancelled)
    return result


class RemoteError(Exception):
    """What an operation raised on another node."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class Links:
    """All connections of one agent."""

    def __init__(
        self,
        index: int,
        members: dict[int, Member],
        client: ssl.SSLContext,
        serve: Serve,
        noticed: Callable[..., None],
        received: Callable[[int, int, int, Any], None],
        is_broken: Callable[[int, str], None],
        fabric: Fabric | None = None,
    ) -> None:
        self.index = index
        self.members = members
        self.serve = serve
        self.noticed = noticed
        self.received = received
        self.fabric = fabric
        self._is_broken = is_broken
        self.lost: dict[int, str] = {}
        # Seconds that a node without a connection has until the front end says that it is lost. No wait fails earlier,
        # so whoever hears of a lost node finds it gone everywhere.
        self.verdict = 0.0
        self._doubts: dict[int, asyncio.Future[None]] = {}
        self._client = client
        self._links: dict[int, Link] = {}  # over which is sent
        self._all: dict[int, list[Link]] = {}  # of each node, what it made too
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._waiting: dict[int, list[tuple[int, asyncio.Future[Answer] | None, Any, Any]]] = {}
        self._loop = asyncio.get_running_loop()
        self.soon = self._loop.call_soon

    def accept(self) -> Link:
        """The protocol of a connection that another agent made."""
        return Link(self, None)

    def call(self, node: int, operation: str, arguments: dict[str, Any], payload: Any = b"") -> asyncio.Future[Answer]:
        """Have another agent do something. Fails with NodeLostError where it is gone."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._send(node, _REQUEST, future, (operation, arguments), payload)
        return future

    def notify(self, node: int, operation: str, arguments: dict[str, Any], payload: Any = b"") -> None:
        """The same without an answer."""
        self._send(node, _NOTICE, None, (operation, arguments), payload)

    def send_messages(self, node: int, flow: int, kind: int, data: Any) -> None:
        """Send messages of a flow, in order. Where the connection breaks `is_broken` says so."""
        self._send(node, _MESSAGES, None, (flow, kind), data)

    def host(self, node: int) -> str:
        """How messages name a node."""
        return f"node {node} ({self.members[node].node.host_name})" if node in self.members else f"node {node}"

    def forget(self, node: int, reason: str) -> None:
        """A node is gone: whatever waits for it fails."""
        if node in self.lost:
            return
        self.lost[node] = reason
        self._links.pop(node, None)
        for link in self._all.pop(node, []):
            link.abort()
        self._is_broken(node, reason)
        self._settle(node)
        self._fail(node, [future for _, future, _, _ in self._waiting.pop(node, [])])

    def settled(self, node: int) -> asyncio.Future[None]:
        """Done once it is known whether a node whose connection broke is lost."""
        doubt = self._doubts.get(node)
        if doubt is None:
            doubt = self._loop.create_future()
            doubt.set_result(None)
        return doubt

    def probe(self, node: int) -> None:
        """Find out whether a node whose connection broke is there: a new connection settles it."""
        if node in self._doubts:
            self.call(node, "members", {}).add_done_callback(lambda done: done.cancelled() or done.exception())

    def _doubt(self, node: int) -> asyncio.Future[None]:
        if node not in self._doubts and node not in self.lost:
            self._doubts[node] = self._loop.create_future()
            self._loop.call_later(self.verdict, self._settle, node)
        return self.settled(node)

    def _settle(self, node: int) -> None:
        doubt = self._doubts.pop(node, None)
        if doubt is not None:
            doubt.set_result(None)

    def close(self) -> None:
        """Close all connections."""
        for link in [link for links in self._all.values() for link in links]:
            link.abort()

    def _fail(self, node: int, futures: Iterable[asyncio.Future[Answer] | None], reason: str = "") -> None:
        for future in futures:
            if future is not None and not future.done():
                future.set_exception(NodeLostError(self._what_happened(node, reason)))

    def _what_happened(self, node: int, reason: str) -> str:
        if node in self.lost:
            return f"{self.host(node)} is gone: {self.lost[node]}"
        return f"the connection to {self.host(node)} broke: {reason}"

    def _send(self, node: int, kind: int, future: asyncio.Future[Answer] | None, body: Any, payload: Any) -> None:
        link = self._links.get(node)
        if link is not None:
            link.send(kind, future, body, payload)
        elif node in self.lost:
            self._fail(node, [future])
        elif node not in self.members:
            if future is not None:
                future.set_exception(ValueError(f"the run has no node {node}"))
        else:
            self._waiting.setdefault(node, []).append((kind, future, body, payload))
            if node not in self._connecting:
                self._connecting[node] = self._loop.create_task(self._connect(node))

    async def _connect(self, node: int) -> None:
        member, failure = self.members[node], "it has no address"
        try:
            for address in member.addresses:
                try:
                    await asyncio.wait_for(
                        self._loop.create_connection(lambda: Link(self, node), address, member.port, ssl=self._client),
                        _CONNECT_TIMEOUT,
                    )
                    return
                except (TimeoutError, OSError, ssl.SSLError) as error:
                    failure = f"{address} port {member.port}: {error or type(error).__name__}"
            await self._doubt(node)
            self.forget(node, f"no connection to {failure}")
        finally:
            self._connecting.pop(node, None)

    def made(self, node: int, link: Link) -> None:
        """A connection to that node stands."""
        self._links.setdefault(node, link)
        self._all.setdefault(node, []).append(link)
        self._settle(node)  # it lives
        for kind, future, body, payload in self._waiting.pop(node, []):
            link.send(kind, future, body, payload)

    def broken(self, node: int | None, link: Link, reason: str) -> None:
        """A connection ended."""
        if node is not None:
            others = self._all.get(node, [])
            if link in others:
                others.remove(link)
            if self._links.get(node) is link:
                del self._links[node]
            # Where each side made a connection what one sent came over the other's.
            self._is_broken(node, self.lost.get(node, reason))
            if others:
                # That side knew earlier, and made another one. What was sent to it meanwhile is lost.
                self._links.setdefault(node, others[0]).send(_NOTICE, None, ("link_broken", {"reason": reason}), b"")
            pending = list(link.pending.values())
            settled = self.settled(node) if others else self._doubt(node)
            settled.add_done_callback(lambda _: self._fail(node, pending, reason))
        for cancel in link.serving.values():
            if cancel is not None:
                cancel()
        link.pending, link.serving = {}, {}


@dataclass(eq=False, slots=True)
class _Arrival:
    """A frame that waits for its payload, or for that of one before it."""

    part: Any
    payload: Any
    complete: bool


class Link(asyncio.BufferedProtocol):
    """One connection. `node` is None until the other side's certificate has told."""

    def __init__(self, links: Links, node: int | None) -> None:
        self.links = links
        self.node = node
        self.pending: dict[int, asyncio.Future[Answer]] = {}
        self.serving: dict[int, Callable[[], None] | None] = {}
        self._last = 0
        self._buffer = bytearray(256 * 1024)
        self._start = self._end = 0
        self._in_link = InLink(None)
        self._beside: Lane | None = None
        self._greeted: Greeting | None = None
        self._arrivals: deque[_Arrival] = deque()
        self._failure = ""
        self._to_write: list[Any] = []
        self._waits = False

    # ---- asyncio

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._in_link = InLink(transport)
        peer = transport.get_extra_info("socket")
        if peer is not None:
            watch_silence(peer)
        try:
            node = peer_index(transport.get_extra_info("ssl_object"))
        except ValueError as error:
            log.error("a connection was refused: %s", error)
            transport.abort()
            return
        if self.node not in (None, node):
            log.error("%s answered in place of %s", self.links.host(node), self.links.host(self.node or 0))
            transport.abort()
            return
        self.node = node
        if self.links.fabric is not None:
            self._greeted = self.links.fabric.greet()
            self._write((_GREETING, 0, self._greeted), b"")
        self.links.made(node, self)

    def connection_lost(self, error: Exception | None) -> None:
        self._in_link.close()
        if self._beside is not None:
            self._beside.close()
        self._arrivals.clear()
        self.links.broken(self.node, self, str(self._failure or error or "the connection was closed"))

    def pause_writing(self) -> None:
        self._in_link.resume(is_full=True)

    def resume_writing(self) -> None:
        self._in_link.resume()

    def get_buffer(self, hint: int) -> memoryview:
        return self._in_link.rest or memoryview(self._buffer)[self._end :]

    def buffer_updated(self, count: int) -> None:
        self._guard(self._take, count)

    def _guard(self, action: Callable[..., None], *arguments: Any) -> None:
        """Do something with what the other side sent, which may make no sense."""
        try:
            action(*arguments)
        except (msgspec.MsgspecError, ArithmeticError, LookupError, MemoryError, TypeError, ValueError):
            log.exception("%s sent what cannot be understood; the connection is closed", self.links.host(self._peer))
            self.transport.abort()

    @property
    def _peer(self) -> int:
        assert self.node is not None
        return self.node

    def _take(self, count: int) -> None:
        if self._in_link.rest:
            self._in_link.filled(count)
            return
        self._end += count
        while self._next():
            pass
        if not self._in_link.rest:
            self._make_room()

    def _next(self) -> bool:
        available = self._end - self._start
        if available < _HEADER.size:
            return False
        size, payload = _HEADER.unpack_from(self._buffer, self._start)
        beside = bool(payload & _BESIDE)
        payload &= ~_BESIDE
        if size > _LARGEST_PART or payload > _LARGEST_PAYLOAD:
            raise ValueError(f"a frame of {size} and {payload} bytes is too large")
        if available < _HEADER.size + size:
            return False
        start = self._start + _HEADER.size
        part = msgspec.msgpack.decode(memoryview(self._buffer)[start : start + size])
        self._start = start + size
        if payload == 0:
            self._arrived(part, b"")
            return True
        memory = _memory(part, payload)
        if beside:
            self._expect(part, memory)
            return True
        self._in_link.receive(memory, partial(self._arrived, part, memory))
        there = min(payload, self._end - self._start)
        self._in_link.rest[:there] = memoryview(self._buffer)[self._start : self._start + there]
        self._start += there
        if there < payload:
            self._start = self._end = 0
        self._in_link.filled(there)
        return not self._in_link.rest

    def _arrived(self, part: Any, payload: Any) -> None:
        """A frame is complete, and all that were sent before it are here, if some not yet complete."""
        if self._arrivals:
            self._arrivals.append(_Arrival(part, payload, True))
        else:
            self._received(part, payload)

    def _expect(self, part: Any, memory: Any) -> None:
        """The payload of a frame comes by the other lane."""
        if self._beside is None:
            raise ValueError("there is no fabric over which a payload could come")
        arrival = _Arrival(part, memory, False)
        self._arrivals.append(arrival)
        self._beside.receive(memory, partial(self._complete, arrival))

    def _complete(self, arrival: _Arrival) -> None:
        arrival.complete = True
        self._guard(self._take_arrivals)

    def _take_arrivals(self) -> None:
        while self._arrivals and self._arrivals[0].complete:
            arrival = self._arrivals.popleft()
            self._received(arrival.part, arrival.payload)

    def _make_room(self) -> None:
        rest = self._end - self._start
        needed = 0
        if rest >= _HEADER.size:
            needed = _HEADER.size + _HEADER.unpack_from(self._buffer, self._start)[0]
        if self._start or needed > len(self._buffer):
            data = bytes(memoryview(self._buffer)[self._start : self._end])
            if needed > len(self._buffer):
                self._buffer = bytearray(needed)
            self._buffer[:rest] = data
            self._start, self._end = 0, rest

    # ---- frames

    def send(self, kind: int, future: asyncio.Future[Answer] | None, body: Any, payload: Any) -> None:
        """Send a request or a notice."""
        if kind == _MESSAGES:
            self._write((kind, *body), payload)
            return
        number = 0
        if future is not None:
            if future.done():
                return
            self._last = number = self._last + 1
            self.pending[number] = future
            future.add_done_callback(lambda done: self._asked_no_more(number, done))
        self._write((kind, number, *body), payload)

    def _asked_no_more(self, number: int, future: asyncio.Future[Answer]) -> None:
        if self.pending.pop(number, None) is not None and future.cancelled():
            self._write((_CANCEL, number), b"")

    def _write(self, part: Any, payload: Any) -> None:
        if self.transport.is_closing():
            return
        data = encode(part)
        following = memoryview(payload).cast("B")
        lane, flag = self._lane(len(following))
        head = _HEADER.pack(len(data), len(following) | flag) + data
        if not self._waits:
            # The first frame in a round of the loop goes at once, those after it together.
            self._waits = True
            self.links.soon(self._flush)
            self._in_link.write(head)
            if following:
                lane.send(following)
        elif len(following) < _JOINED:
            self._to_write += [head, following]
        else:
            self._to_write.append(head)
            self._write_all()
            lane.send(following)

    def _lane(self, size: int) -> tuple[Lane, int]:
        """The way for a payload, and how the header says so."""
        if size >= _BULK and self._beside is not None and self._beside.open():
            return self._beside, _BESIDE
        return self._in_link, 0

    def _flush(self) -> None:
        self._waits = False
        self._write_all()

    def _write_all(self) -> None:
        written, self._to_write = self._to_write, []
        if written and not self.transport.is_closing():
            self._in_link.write(b"".join(written))

    def _received(self, part: Any, payload: Any) -> None:
        kind, number = part[0], part[1]
        if kind == _REQUEST:
            cancel = self.links.serve(
                self._peer, part[2], part[3], payload, lambda *answer: self._respond(number, *answer)
            )
            if cancel is not None:
                self.serving[number] = cancel
        elif kind == _MESSAGES:
            self.links.received(self._peer, number, part[2], payload)
        elif kind == _NOTICE:
            self.links.noticed(self._peer, part[2], part[3], payload)
        elif kind == _CANCEL:
            cancel = self.serving.pop(number, None)
            if cancel is not None:
                cancel()
        elif kind == _GREETING:
            self._on_greeting(part[2])
        else:
            future = self.pending.pop(number, None)
            if future is not None and not future.done():
                if kind == _VALUE:
                    future.set_result((part[2], payload))
                else:
                    future.set_exception(RemoteError(part[2], part[3]))

    def _on_greeting(self, heard: Any) -> None:
        if self.links.fabric is not None and self._greeted is not None and self._beside is None:
            heard = msgspec.convert(heard, Greeting)
            self._beside = self.links.fabric.lane(self._greeted, heard, self.links.host(self._peer), self._on_lane_lost)

    def _on_lane_lost(self, reason: str) -> None:
        # What was sent that way is lost, so the link is worth nothing either.
        self._failure = self._failure or reason
        self.transport.abort()

    def _respond(self, number: int, value: Any, payload: Any = b"", error: BaseException | None = None) -> None:
        self.serving.pop(number, None)
        if error is not None:
            self._write((_ERROR, number, *error_of(error)), b"")
        else:
            self._write((_VALUE, number, value), payload)

    def abort(self) -> None:
        """Close the connection at once."""
        self.transport.abort()
