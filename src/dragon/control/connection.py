"""One end of the connection between the front end and an agent."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import cast

import msgspec

from dragon.runtime.protocol.front_end import Message, decode_message
from dragon.runtime.protocol.request import frame

__all__ = ["LARGEST_FRAME", "Control", "watch_silence"]

LARGEST_FRAME = 64 * 2**20  # bytes
_SILENCE_TIMEOUT_S = 4

_encode = msgspec.msgpack.Encoder().encode


class Control(asyncio.Protocol):
    """One end of a control connection. All calls must be made in the event loop in which it was made.

    `on_message` is called with each message; messages that arrive before it is set are kept for it. `on_lost` is called
    with the reason when the connection ends without close() on this side, even if it is set afterwards.
    """

    def __init__(self, peer: str, largest: int = LARGEST_FRAME) -> None:
        self.peer = peer
        self.largest = largest
        self.transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._waiting: deque[Message] = deque()
        self._arrived: asyncio.Event = asyncio.Event()
        self._on_message: Callable[[Message], None] | None = None
        self._on_lost: Callable[[str], None] | None = None
        self._lost = ""
        self._closed = False

    @property
    def on_message(self) -> Callable[[Message], None] | None:
        """The function that is called with each message, or None."""
        return self._on_message

    @on_message.setter
    def on_message(self, handler: Callable[[Message], None] | None) -> None:
        self._on_message = handler
        while self._waiting and self._on_message is not None:
            self._on_message(self._waiting.popleft())

    @property
    def on_lost(self) -> Callable[[str], None] | None:
        """The function that is called with the reason when the connection is lost, or None."""
        return self._on_lost

    @on_lost.setter
    def on_lost(self, handler: Callable[[str], None] | None) -> None:
        self._on_lost = handler
        if self._lost and handler is not None:
            handler(self._lost)

    def send(self, message: Message) -> None:
        """Send a message. On a lost or closed connection it is dropped. Raises ValueError if it is too large."""
        if self.transport is None or self._lost or self._closed:
            return
        body = _encode(message)
        if len(body) > LARGEST_FRAME:
            kind = type(message).__name__
            raise ValueError(f"a message {kind} of {len(body)} bytes is over the limit of {LARGEST_FRAME}")
        self.transport.write(frame(body))

    async def receive(self) -> Message:
        """Return the next message, if `on_message` is not set. Raises ConnectionError when the connection is lost."""
        while not self._waiting:
            if self._lost or self._closed:
                raise ConnectionError(self._lost or f"the connection to {self.peer} was closed")
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()

    def close(self) -> None:
        """Send pending messages and close; `on_lost` is not called."""
        self._closed = True
        self._arrived.set()
        if self.transport is not None:
            self.transport.close()

    def drop(self) -> None:
        """Discard what the peer has not received since close()."""
        if self._closed and self.transport is not None:
            self.transport.abort()

    def abort(self, reason: str) -> None:
        """End the connection at once, as lost for that reason."""
        self._lose(reason)
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and enable probes of the peer."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses of it
        watch_silence(transport.get_extra_info("socket"))

    def connection_lost(self, error: Exception | None) -> None:
        """Report why the connection ended."""
        self._lose(f"the connection to {self.peer} " + (f"failed: {error}" if error else "was closed by it"))

    def data_received(self, data: bytes) -> None:
        """Decode complete frames and deliver their messages. Aborts the connection at a malformed or too large
        frame."""
        self._received += data
        while len(self._received) >= 4 and not self._lost and not self._closed:
            size = int.from_bytes(self._received[:4], "little")
            if size > self.largest:
                self.abort(f"{self.peer} sent a frame of {size} bytes; the limit is {self.largest}")
                return
            if len(self._received) < 4 + size:
                return
            body = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            try:
                message = decode_message(body)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                self.abort(f"{self.peer} sent a malformed frame: {error}")
                return
            self._deliver(message)

    def _deliver(self, message: Message) -> None:
        if self._on_message is not None:
            self._on_message(message)
        else:
            self._waiting.append(message)
            self._arrived.set()

    def _lose(self, reason: str) -> None:
        if self._lost or self._closed:
            return
        self._lost = reason
        self._arrived.set()
        if self._on_lost is not None:
            self._on_lost(reason)


def watch_silence(connection: socket.socket) -> None:
    """Let the kernel probe an idle TCP connection every second, and end it after four seconds without an answer.

    It then fails with ETIMEDOUT, whether or not there is something to send.
    """
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _SILENCE_TIMEOUT_S - 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _SILENCE_TIMEOUT_S * 1000)
