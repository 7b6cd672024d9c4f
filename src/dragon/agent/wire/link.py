"""One connection between two agents, and the listener for those of other agents; any other caller is refused.

A frame follows a header: its size (4 bytes), the size of its payload, its number in the session, and the number of the
last frame of the other side that was handled (8 bytes each). The payload follows the frame, and is received directly
into its memory. A flag in the header says that the payload comes over the fabric that both agents have; even then,
frames are handled in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec

from dragon import _core
from dragon.agent.wire.bulk import Fabric, Greeting, InLink, Lane
from dragon.agent.wire.direct import LANE, Direct
from dragon.agent.wire.frames import Frame, Greeted, Messages, Noticed, State, Value, decode_frame
from dragon.agent.wire.session import Session
from dragon.control.connection import watch_silence
from dragon.infrastructure.messages import encode
from dragon.runtime.callers import Callers
from dragon.runtime.credentials import peer_index
from dragon.runtime.log import Once, runtime_log
from dragon.runtime.protocol.agents import Notice

__all__ = ["Link", "Listener"]


_HANDSHAKE_WITHIN = 5.0


class Listener:
    """Accepts connections on `listener`: links, served by `protocol`, and lanes of `direct`."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        protocol: Callable[[], asyncio.BaseProtocol],
        direct: Direct,
    ) -> None:
        self._context = context
        self._protocol = protocol
        self._direct = direct
        self._loop = asyncio.get_running_loop()
        self._tell = Once(log)
        self._callers = Callers(listener, self._greet, self._tell)

    def close(self) -> None:
        """Accept no more connections."""
        self._callers.close()

    async def _greet(self, connection: socket.socket, address: str) -> None:
        try:
            async with asyncio.timeout(_HANDSHAKE_WITHIN):
                if connection.recv(1, socket.MSG_PEEK) == LANE:
                    await self._admit_lane(connection)
                    return
            await self._loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._context, ssl_handshake_timeout=_HANDSHAKE_WITHIN
            )
        except ConnectionResetError as error:  # as from a node whose run ends
            connection.close()
            log.debug("a connection from %s was closed before it had shown a certificate: %s", address, error)
        except OSError as error:  # TimeoutError is one
            connection.close()
            why = str(error) or type(error).__name__
            self._tell("a caller from {} was refused: it has no certificate of this run ({})", address, why)

    async def _admit_lane(self, connection: socket.socket) -> None:
        try:
            await self._direct.admit(connection)
        except ConnectionRefusedError as error:
            connection.close()
            log.debug("a connection for large payloads was refused: %s", error)


log = runtime_log("links")

_HEADER = struct.Struct("<IQQQ")
_LARGEST_PART = 64 * 2**20
_LARGEST_PAYLOAD = 2**36
_JOINED = 32 * 1024  # bytes of the largest payload that is copied to be written with others
_LARGE = 64 * 1024
_BULK = 128 * 1024  # bytes of the smallest payload that goes over a fabric
_BESIDE = 1 << 63  # flag in the size of a payload: it comes over the fabric


def _memory(frame: Frame, size: int) -> tuple[Any, memoryview]:
    """Return the memory for a payload, in the arena for a large message, and the part of it that is to be received.

    The start of a message may be here already.
    """
    start = frame.start if isinstance(frame, Messages) else b""
    to_arena = isinstance(frame, Value) or (isinstance(frame, Messages) and frame.kind >= 0)
    try:
        whole = _core.Loan(len(start) + size) if to_arena and size >= _LARGE else bytearray(len(start) + size)
    except MemoryError:  # putting it into a channel fails too, and the sender gets that error
        whole = bytearray(len(start) + size)
    view = memoryview(whole)
    view[: len(start)] = start
    return whole, view[len(start) :]


@dataclass(eq=False, slots=True)
class _Arrival:
    """A frame that waits for its payload, or for the payload of a frame before it."""

    frame: Frame | None
    payload: Any
    complete: bool
    number: int = 0
    acknowledged: int = 0


class LinkOwner(Protocol):
    """The agent at this end of a connection, as the connection uses it."""

    fabric: Fabric | None

    def host(self, node: int) -> str:
        """Return a node's name for messages."""

    def session_of(self, node: int, link: Link) -> Session | None:
        """Return the session for a new connection to that node; None, and dismiss the link, if the node is lost."""

    def made(self, node: int, link: Link) -> None:
        """Note that a connection to that node is ready."""

    def broken(self, node: int | None, link: Link, reason: str) -> None:
        """Note that a connection ended."""


class Link(asyncio.BufferedProtocol):
    """One connection. `node` is None until the other side's certificate is known."""

    def __init__(self, owner: LinkOwner, node: int | None) -> None:
        self._owner = owner
        self.node = node
        self.epoch = 0  # of the other side
        self._session: Session | None = None
        self._buffer = bytearray(256 * 1024)
        self._start = self._end = 0
        self._in_link = InLink(None)
        self._beside: Lane | None = None
        self._greeted: Greeting | None = None
        self._arrivals: deque[_Arrival] = deque()
        self._failure = ""
        self._over = False
        self._to_write: list[Any] = []
        self._waits = False
        self._soon = asyncio.get_running_loop().call_soon

    # ---- asyncio

    def connection_made(self, transport: Any) -> None:
        """Check by its certificate which node the peer is, then greet it. Aborts a connection of any other."""
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
            log.error("%s answered in place of %s", self._owner.host(node), self._owner.host(self.node or 0))
            transport.abort()
            return
        self.node = node
        self._session = self._owner.session_of(node, self)
        if self._session is None:
            return
        self.write_state()
        if self._owner.fabric is not None and not self._session.avoids_fabric():
            self._greeted = self._owner.fabric.greet()
            self.write(0, encode(Greeted(self._greeted)), b"")
        self._owner.made(node, self)

    def connection_lost(self, error: Exception | None) -> None:
        """Close the lanes, take what has arrived, and report to the owner why the link broke."""
        self._in_link.close()
        if self._beside is not None:
            self._beside.close()
        self._guard(self._hear_all)
        self._owner.broken(self.node, self, str(self._failure or error or "the connection was closed"))

    def pause_writing(self) -> None:
        """Write nothing more for now: the transport's buffer is full."""
        self._in_link.resume(is_full=True)

    def resume_writing(self) -> None:
        """Go on writing what waits."""
        self._in_link.resume()

    def get_buffer(self, hint: int) -> memoryview:
        """Return where the next bytes go: into the payload under way, or into the buffer of frames."""
        return self._in_link.rest or memoryview(self._buffer)[self._end :]

    def buffer_updated(self, count: int) -> None:
        """Take `count` bytes that have arrived in the buffer."""
        self._guard(self._take, count)

    def _guard(self, action: Callable[..., None], *arguments: Any) -> None:
        """Call `action` on what the other side sent, which may be invalid."""
        try:
            action(*arguments)
        except (msgspec.MsgspecError, ArithmeticError, LookupError, MemoryError, RecursionError, TypeError, ValueError):
            log.exception("%s sent invalid data; the connection is closed", self._owner.host(self._peer))
            self.transport.abort()
            self._over = True
            if self._session is not None:
                self._session.was_invalid()

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
        size, payload, number, acknowledged = _HEADER.unpack_from(self._buffer, self._start)
        beside = bool(payload & _BESIDE)
        payload &= ~_BESIDE
        if size > _LARGEST_PART or payload > _LARGEST_PAYLOAD:
            raise ValueError(f"a frame of {size} and {payload} bytes is too large")
        if available < _HEADER.size + size:
            return False
        start = self._start + _HEADER.size
        frame = decode_frame(bytes(memoryview(self._buffer)[start : start + size]))
        self._start = start + size
        arrival = _Arrival(frame, b"", True, number, acknowledged)
        if payload == 0:
            self._arrived(arrival)
            return True
        arrival.payload, memory = _memory(frame, payload)
        if beside:
            self._expect(arrival, memory)
            return True
        self._in_link.receive(memory, partial(self._arrived, arrival))
        there = min(payload, self._end - self._start)
        self._in_link.rest[:there] = memoryview(self._buffer)[self._start : self._start + there]
        self._start += there
        if there < payload:
            self._start = self._end = 0
        self._in_link.filled(there)
        return not self._in_link.rest

    def _arrived(self, arrival: _Arrival) -> None:
        """Handle a complete frame. All frames sent before it are here, though some may not be complete."""
        if self._arrivals:
            self._arrivals.append(arrival)
        else:
            self._received(arrival)

    def _expect(self, arrival: _Arrival, memory: memoryview) -> None:
        """Receive the payload of a frame over the other lane."""
        if self._beside is None:
            raise ValueError("a payload is announced over a fabric, but there is none")
        arrival.complete = False
        self._arrivals.append(arrival)
        self._beside.receive(memory, partial(self._complete, arrival))

    def _complete(self, arrival: _Arrival) -> None:
        arrival.complete = True
        self._guard(self._take_arrivals)

    def _take_arrivals(self) -> None:
        while self._arrivals and self._arrivals[0].complete:
            self._received(self._arrivals.popleft())

    def _hear_on(self, turn: asyncio.Future[None] | None) -> None:
        """Continue with the frames after this one once `turn` is done, if it is not None."""
        if turn is not None:
            place = _Arrival(None, None, False)
            self._arrivals.appendleft(place)
            turn.add_done_callback(lambda _: self._complete(place))

    def _hear_all(self) -> None:
        """Handle all complete frames, in order, at the end of the connection."""
        while self._arrivals:
            arrival = self._arrivals.popleft()
            if not arrival.complete and arrival.frame is not None:
                break
            self._received(arrival)
        self._arrivals.clear()

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

    def write(self, number: int, data: bytes, payload: Any) -> None:
        """Send an encoded frame, its number in the session, and its payload. Does nothing if the connection has
        ended."""
        if self.transport.is_closing():
            return
        following = memoryview(payload).cast("B")
        lane, flag = self._lane(len(following))
        acknowledged = self._session.acknowledge() if self._session is not None else 0
        head = _HEADER.pack(len(data), len(following) | flag, number, acknowledged) + data
        if not self._waits:
            # The first frame in a round of the loop is sent at once, those after it together.
            self._waits = True
            self._soon(self._flush)
            if len(following) < _JOINED:  # one system call and one record of TLS for both
                self._in_link.write(head + following if following else head)
            else:
                self._in_link.write(head)
                lane.send(following)
        elif len(following) < _JOINED:
            self._to_write += [head, following]
        else:
            self._to_write.append(head)
            self._write_all()
            lane.send(following)

    def write_state(self) -> None:
        """Send the epoch of the session, and the number of the last frame that was handled."""
        if self._session is not None:
            self.write(0, encode(State(self._session.epoch, self._session.before)), b"")

    def _lane(self, size: int) -> tuple[Lane, int]:
        """Return the lane for a payload, and the flag for it in the header."""
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

    def _received(self, arrival: _Arrival) -> None:
        if self._over or self._session is None or arrival.frame is None:
            return
        if isinstance(arrival.frame, Greeted):
            self._on_greeting(arrival.frame.greeting)
        else:
            self._hear_on(
                self._session.hear(self, arrival.number, arrival.acknowledged, arrival.frame, arrival.payload)
            )

    def _on_greeting(self, heard: Greeting) -> None:
        if self._owner.fabric is None or self._greeted is None or self._beside is not None:
            return
        if heard.kind == self._greeted.kind:
            self._beside = self._owner.fabric.lane(
                self._greeted, heard, self._owner.host(self._peer), self._on_lane_lost
            )

    def _on_lane_lost(self, reason: str) -> None:
        # What was sent over the lane is lost, and sent again over the next link.
        self._failure = self._failure or reason
        if self._session is not None:
            self._session.lane_lost(reason)
        self.transport.abort()

    def abort(self) -> None:
        """Close the connection at once: what has arrived and was not handled yet is dropped."""
        self._over = True
        self.transport.abort()

    def dismiss(self, notice: Notice) -> None:
        """Send a notice, and close the connection; nothing is received from it."""
        self._over = True
        data = encode(Noticed(notice))
        self._in_link.write(_HEADER.pack(len(data), 0, 0, 0) + data)
        self.transport.close()
