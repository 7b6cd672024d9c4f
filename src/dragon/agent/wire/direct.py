"""Large payloads over TCP connections of their own, beside the links.

A lane has one connection for each direction. The sender makes it when the first large payload is to be sent, to the
port that accepts links too. After a greeting it sends a token that the receiver gave it over the link; then it sends
the token again in the same way as payloads, encrypted with a key that it got over the link too, unless the network is
trusted. So no other connection can be taken for a lane.

An encrypted piece is the output of AES-256-GCM (NIST SP 800-38D), with the tag at its end; its nonce is its number on
the connection. A key is used for one connection, in one direction: the receiver created it, and sent it over the link.
So an attacker on the network cannot read a piece, nor change, repeat, omit or reorder one unnoticed. TLS does the same
with records of at most 16 KiB, each of which has more overhead around the cipher than the cipher itself takes.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import msgspec

from dragon.agent.wire.bulk import Greeting
from dragon.control.connection import watch_silence
from dragon.runtime.log import runtime_log

__all__ = ["KEY_SIZE", "LANE", "Clear", "Coding", "Direct", "OneWay", "Sealed"]


KEY_SIZE = 32  # bytes
_PIECE = 512 * 1024  # bytes; this fits into a processor's cache
_KEPT = 8  # buffers kept for reuse; for a while, each lane of an agent may have two
_TAG = 16
_NONCE = 12

_buffers: list[memoryview] = []


class Coding(Protocol):
    """One direction of a connection."""

    def outward(self, payload: memoryview) -> Iterator[memoryview]:
        """Yield what to send for a payload. A piece is not used any more when the next one is requested."""
        ...

    def inward(self, memory: memoryview) -> Iterator[memoryview]:
        """Yield the memory to fill with what is received, so that the payload ends up in `memory`, which has its size.

        Raises OSError, when the next piece is requested, if what was received is not what was sent.
        """
        ...


class Clear:
    """Payloads that are not encrypted."""

    def outward(self, payload: memoryview) -> Iterator[memoryview]:
        """Yield the pieces of a payload that are sent."""
        return _pieces(payload)

    def inward(self, memory: memoryview) -> Iterator[memoryview]:
        """Yield the pieces of `memory` that are to be filled."""
        return _pieces(memory)


class Sealed:
    """Payloads that are encrypted with `key`, of 32 bytes, which must be used for nothing else."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import (
            AESGCM,
        )  # takes 40 ms, and few nodes of a short run need it

        self._cipher = AESGCM(key)
        self._pieces = 0

    def _nonce(self) -> bytes:
        self._pieces += 1
        return self._pieces.to_bytes(_NONCE, "little")

    def outward(self, payload: memoryview) -> Iterator[memoryview]:
        """Yield the pieces of a payload, each encrypted."""
        for piece, sealed in _with_buffer(payload):
            self._cipher.encrypt_into(self._nonce(), piece, None, sealed)
            yield sealed

    def inward(self, memory: memoryview) -> Iterator[memoryview]:
        """Yield buffers to fill, and decrypt each into `memory`.

        Raises ConnectionAbortedError if authentication fails.
        """
        from cryptography.exceptions import InvalidTag

        for piece, sealed in _with_buffer(memory):
            yield sealed
            try:
                self._cipher.decrypt_into(self._nonce(), sealed, None, piece)
            except InvalidTag:
                raise ConnectionAbortedError(
                    "payload failed authentication (AES-GCM): corrupted or tampered with in transit"
                ) from None


def _pieces(payload: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(payload), _PIECE):
        yield payload[start : start + _PIECE]


def _with_buffer(payload: memoryview) -> Iterator[tuple[memoryview, memoryview]]:
    """Yield the pieces of a payload, each with memory for its encrypted form."""
    buffer = _buffers.pop() if _buffers else memoryview(bytearray(_PIECE + _TAG))
    try:
        for piece in _pieces(payload):
            yield piece, buffer[: len(piece) + _TAG]
    finally:
        if len(_buffers) < _KEPT:
            _buffers.append(buffer)


_AT_A_TIME = 8 * 2**20  # bytes, before other connections have their turn

# The memory to send or fill for one payload, in pieces.
Pieces = Callable[[memoryview], Iterator[memoryview]]


class OneWay:
    """One direction of a non-blocking connection. `lost` is called with the error if it fails."""

    def __init__(
        self, connection: socket.socket, pieces: Pieces, lost: Callable[[OSError], None], *, is_outward: bool
    ) -> None:
        self._connection = connection
        self._pieces = pieces
        self._lost = lost
        loop = asyncio.get_running_loop()
        self._transfer = connection.send if is_outward else connection.recv_into
        self._watch, self._unwatch = (
            (loop.add_writer, loop.remove_writer) if is_outward else (loop.add_reader, loop.remove_reader)
        )
        self._is_outward = is_outward
        self._is_watched = False
        self._waiting: deque[tuple[memoryview, Callable[[], None]]] = deque()
        # Of the current payload: its pieces, the rest of the current piece, and what to call at the end.
        self._rest = memoryview(b"")
        self._following: Iterator[memoryview] = iter(())
        self._done: Callable[[], None] | None = None

    def add(self, payload: memoryview, done: Callable[[], None]) -> None:
        """Send or fill one more payload, after those before it.

        It is kept until it is finished. Then `done` is called, which must not call add().
        """
        self._waiting.append((payload, done))
        if self._rest:
            return
        self._next()
        if self._is_outward:
            self._go_on()
        else:
            self._set_watched(True)

    def _go_on(self) -> None:
        """Send or receive as much as is possible at once."""
        left = _AT_A_TIME
        try:
            while left > 0:
                count = self._transfer(self._rest)
                if count == 0:
                    raise ConnectionResetError("the connection was closed")
                left -= count
                self._rest = self._rest[count:]
                if self._rest or not self._next():
                    break
        except BlockingIOError:
            pass
        except OSError as error:
            self.close()
            self._lost(error)
            return
        self._set_watched(bool(self._rest))

    def _next(self) -> bool:
        """Go to the next piece. Return whether there is one."""
        while True:
            piece = next(self._following, None)
            if piece is not None:
                self._rest = piece
                return True
            # Nothing refers to the piece any more, so its memory can be used again.
            self._rest, self._following = memoryview(b""), iter(())
            done, self._done = self._done, None
            if done is not None:
                done()
            if not self._waiting:
                return False
            payload, self._done = self._waiting.popleft()
            self._following = self._pieces(payload)

    def _set_watched(self, on: bool) -> None:
        if on and not self._is_watched:
            self._watch(self._connection, self._go_on)
        elif self._is_watched and not on:
            self._unwatch(self._connection)
        self._is_watched = on

    def close(self) -> None:
        """Close the connection. What is not finished is given up."""
        self._set_watched(False)
        self._waiting.clear()
        self._rest, self._following, self._done = memoryview(b""), iter(()), None
        self._connection.close()


log = runtime_log("fabric")

LANE = b"\0"
"""The first byte that the connecting side sends; on a link it is TLS's 22."""

_GREETING = LANE + b"dragon\n"
_WELCOME = b"\1"  # the listening side's answer, and all that it ever sends
_TOKEN = 8  # bytes
_CONNECT_TIMEOUT_S = 5.0  # seconds for each address

# Addresses, a port, and the key of what is sent there (b"" if it is not encrypted).
_Place = tuple[list[str], int, bytes]


class Direct:
    """An agent's end, which the others reach at `addresses` and `port`."""

    def __init__(self, addresses: list[str], port: int, *, sealed: bool) -> None:
        self.kind = "sealed TCP" if sealed else "plain TCP"
        self.sent = self.received = 0
        self._addresses, self._port, self._sealed = addresses, port, sealed
        self._lanes: dict[int, _Beside] = {}

    def greet(self) -> Greeting:
        """Return the addresses, the port and, if payloads are encrypted, a new key."""
        place: _Place = (self._addresses, self._port, secrets.token_bytes(KEY_SIZE) if self._sealed else b"")
        return Greeting(self.kind, msgspec.msgpack.encode(place), secrets.randbits(8 * _TOKEN - 1))

    def lane(self, told: Greeting, heard: Greeting, peer: str, lost: Callable[[str], None]) -> _Beside:
        """Return the lane beside a link, which connects by TCP to the addresses in the other side's greeting."""
        lane = self._lanes[told.tag] = _Beside(self, told, heard, peer, lost, lambda: self._lanes.pop(told.tag, None))
        return lane

    async def admit(self, connection: socket.socket) -> None:
        """Accept a connection whose first byte is LANE. Raises OSError if it is not the other end of a lane."""
        opening = bytearray(len(_GREETING) + _TOKEN)
        await _fill(connection, memoryview(opening))
        if not opening.startswith(_GREETING):
            raise ConnectionAbortedError("malformed handshake on a bulk-data connection")
        token = opening[len(_GREETING) :]
        number = int.from_bytes(token, "little")
        lane = self._lanes.get(number)
        if lane is None:  # not an agent of the run, or too late: the link is closed
            raise ConnectionRefusedError(
                "the handshake of a bulk-data connection does not name a link between two agents"
            )
        coding, again = lane.coding(), bytearray(_TOKEN)
        for piece in coding.inward(memoryview(again)):
            await _fill(connection, piece)
        if again != token:
            raise ConnectionAbortedError("malformed handshake on a bulk-data connection")
        if self._lanes.get(number) is not lane or not lane.take(connection, coding):
            raise ConnectionRefusedError("the link that it names is closed, or has a bulk-data connection already")

    def close(self) -> None:
        """Log how many bytes were sent and received."""
        log.info("%s sent %d bytes and received %d", self.kind, self.sent, self.received)


class _Beside:
    """The lane beside one link."""

    def __init__(
        self,
        fabric: Direct,
        told: Greeting,
        heard: Greeting,
        peer: str,
        lost: Callable[[str], None],
        closed: Callable[[], object],
    ) -> None:
        self._fabric = fabric
        self._told, self._heard = told, heard
        self._peer = peer
        self._lost = lost
        self._closed = closed
        self._connecting: asyncio.Task[None] | None = None
        self._outward: OneWay | None = None
        self._inward: OneWay | None = None
        self._expected: list[tuple[memoryview, Callable[[], None]]] = []  # until the connection is there

    def open(self) -> bool:
        if self._connecting is None:
            # Payloads go over the link until there is a connection.
            self._connecting = asyncio.ensure_future(self._make())
        return self._outward is not None

    def coding(self) -> Coding:
        """Return how received payloads are encoded."""
        return _coding(_place(self._told)[2])

    def take(self, connection: socket.socket, coding: Coding) -> bool:
        """Use this connection for received payloads. Return False if there is one already. Raises OSError."""
        if self._inward is not None:
            return False
        watch_silence(connection)
        connection.send(_WELCOME)
        self._inward = OneWay(connection, coding.inward, self._failed, is_outward=False)
        for memory, done in self._expected:
            self._inward.add(memory, done)
        self._expected.clear()
        return True

    def send(self, payload: memoryview) -> None:
        assert self._outward is not None
        size = len(payload)

        def sent() -> None:
            self._fabric.sent += size

        self._outward.add(payload, sent)

    def receive(self, memory: Any, done: Callable[[], None]) -> None:
        whole = memoryview(memory)
        size = len(whole)

        def received() -> None:
            self._fabric.received += size
            done()

        if self._inward is None:
            self._expected.append((whole, received))
        else:
            self._inward.add(whole, received)

    def _failed(self, error: OSError) -> None:
        self._lost(f"a payload was lost: {error}")

    async def _make(self) -> None:
        try:
            connection, coding = await self._connect(*_place(self._heard))
        except (OSError, ValueError, OverflowError) as error:
            kind = self._fabric.kind
            log.warning("%s cannot be reached by %s (%s); payloads go there over the link", self._peer, kind, error)
            return
        self._outward = OneWay(connection, coding.outward, self._failed, is_outward=True)

    async def _connect(self, addresses: list[str], port: int, key: bytes) -> tuple[socket.socket, Coding]:
        failure: Exception = ValueError("it has no address")
        for address in addresses:
            connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            try:
                coding = _coding(key)  # each address gets the same first data, so no nonce is used for different data
                async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                    await self._open(connection, (address, port), coding)
                return connection, coding
            except OSError as error:  # TimeoutError is one
                connection.close()
                failure = error
            except BaseException:
                connection.close()
                raise
        raise failure

    async def _open(self, connection: socket.socket, address: tuple[str, int], coding: Coding) -> None:
        connection.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(connection, address)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        watch_silence(connection)
        token = self._heard.tag.to_bytes(_TOKEN, "little")
        await loop.sock_sendall(connection, _GREETING + token)
        for piece in coding.outward(memoryview(token)):
            await loop.sock_sendall(connection, piece)
        await _fill(connection, memoryview(bytearray(len(_WELCOME))))

    def close(self) -> None:
        self._closed()
        if self._connecting is not None:
            self._connecting.cancel()
        for way in (self._outward, self._inward):
            if way is not None:
                way.close()
        self._outward = None
        self._expected.clear()


async def _fill(connection: socket.socket, memory: memoryview) -> None:
    """Receive until `memory` is full. Raises OSError if the connection is closed before that."""
    loop = asyncio.get_running_loop()
    while memory:
        count = await loop.sock_recv_into(connection, memory)
        if count == 0:
            raise ConnectionResetError("the connection was closed")
        memory = memory[count:]


def _place(greeting: Greeting) -> _Place:
    place: _Place = msgspec.msgpack.decode(greeting.place, type=_Place)
    return place


def _coding(key: bytes) -> Coding:
    return Sealed(key) if key else Clear()
