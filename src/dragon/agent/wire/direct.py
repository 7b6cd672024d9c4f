"""Large payloads over TCP connections of their own, beside the links.

A lane has one connection for each direction. The sender makes it when the first large payload is to be sent, to the
port that accepts links too. After a greeting it sends a token that the receiver gave it over the link; then it sends
the token again in the same way as payloads, encrypted with a key that it got over the link too, unless the network is
trusted. So no other connection can be taken for a lane.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from dragon.agent.wire.bulk import Greeting
from dragon.agent.wire.one_way import OneWay
from dragon.agent.wire.sealing import KEY_SIZE, Clear, Coding, Sealed
from dragon.control.connection import watch_silence
from dragon.runtime.log import runtime_log

__all__ = ["LANE", "Direct"]

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
