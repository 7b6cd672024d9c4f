"""Large payloads over TCP connections of their own, beside the links.

A lane has a connection in each direction, which whoever sends makes when the first large payload is to go, at the port
where links come in too. After a greeting it says a number that the receiver told over the link; then it says it again
as it sends payloads, sealed with a key that was told there too, unless the network is trusted. So nobody else's
connection is taken for a lane.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec

from dragon.agent.bulk import Greeting
from dragon.agent.control import watch_silence
from dragon.agent.sealing import KEY_SIZE, Clear, Coding, Sealed, fill
from dragon.runtime.log import runtime_log

__all__ = ["LANE", "Direct"]

log = runtime_log("fabric")

LANE = b"\0"
"""What the caller's first byte is; a link's is TLS's 22."""

_GREETING = LANE + b"dragon\n"
_WELCOME = b"\1"  # what the listening side answers, and all that it ever says
_TOKEN = 8  # bytes
_PATIENCE = 5.0  # seconds for each address

# Addresses, a port, and the key of what is sent there; no key where that goes as it is.
_Place = tuple[list[str], int, bytes]


class Direct:
    """An agent's end, which the others reach at `addresses` and `port`."""

    def __init__(self, addresses: list[str], port: int, *, sealed: bool) -> None:
        self.kind = "sealed TCP" if sealed else "plain TCP"
        self.sent = self.received = 0
        self._addresses, self._port, self._sealed = addresses, port, sealed
        self._lanes: dict[int, _Beside] = {}

    def greet(self) -> Greeting:
        place: _Place = (self._addresses, self._port, secrets.token_bytes(KEY_SIZE) if self._sealed else b"")
        return Greeting(self.kind, msgspec.msgpack.encode(place), secrets.randbits(8 * _TOKEN - 1))

    def lane(self, told: Greeting, heard: Greeting, peer: str, lost: Callable[[str], None]) -> _Beside:
        lane = self._lanes[told.tag] = _Beside(self, told, heard, peer, lost, lambda: self._lanes.pop(told.tag, None))
        return lane

    async def admit(self, connection: socket.socket) -> None:
        """A caller whose first byte is LANE. Raises OSError where it is not the other end of a lane."""
        opening = bytearray(len(_GREETING) + _TOKEN)
        await fill(connection, memoryview(opening))
        if not opening.startswith(_GREETING):
            raise ConnectionAbortedError("what it says makes no sense")
        token = opening[len(_GREETING) :]
        lane = self._lanes.get(int.from_bytes(token, "little"))
        if lane is None:  # it is a stranger, or late: the link is gone
            raise ConnectionRefusedError("it names no connection between two agents")
        coding, again = lane.coding(), bytearray(_TOKEN)
        await coding.receive(connection, memoryview(again))
        if again != token:
            raise ConnectionAbortedError("what it says makes no sense")
        if not lane.take(connection, coding):
            raise ConnectionRefusedError("the connection that it names has one already")

    def close(self) -> None:
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
        self._outward: deque[memoryview] = deque()
        self._inward: deque[tuple[memoryview, Callable[[], None]]] = deque()
        self._expected = asyncio.Event()
        self._there = asyncio.Event()
        self._stands = False
        self._sending: asyncio.Task[None] | None = None
        self._receiving: asyncio.Task[None] | None = None

    def open(self) -> bool:
        if self._sending is None:
            # Payloads go over the link until the connection stands.
            self._sending = asyncio.ensure_future(self._send_all())
        return self._stands

    def coding(self) -> Coding:
        """How payloads come."""
        return _coding(_place(self._told)[2])

    def take(self, connection: socket.socket, coding: Coding) -> bool:
        """The connection that payloads come by; whether there was none yet."""
        if self._receiving is not None:
            return False
        watch_silence(connection)
        self._receiving = asyncio.ensure_future(self._receive_all(connection, coding))
        self._receiving.add_done_callback(lambda _: connection.close())
        return True

    def send(self, payload: memoryview) -> None:
        self._outward.append(payload)
        self._there.set()

    def receive(self, memory: Any, done: Callable[[], None]) -> None:
        self._inward.append((memoryview(memory), done))
        self._expected.set()

    async def _send_all(self) -> None:
        try:
            connection, coding = await self._connect(*_place(self._heard))
        except (OSError, ValueError, OverflowError) as error:
            kind = self._fabric.kind
            log.warning("%s cannot be reached by %s (%s); payloads go there over the link", self._peer, kind, error)
            return
        with connection:
            self._stands = True
            try:
                while True:
                    while self._outward:
                        payload = self._outward.popleft()
                        await coding.send(connection, payload)
                        self._fabric.sent += len(payload)
                        del payload  # or what it lies in is kept until the next one comes
                    self._there.clear()
                    await self._there.wait()
            except OSError as error:
                self._lost(f"a payload was lost: {error}")

    async def _connect(self, addresses: list[str], port: int, key: bytes) -> tuple[socket.socket, Coding]:
        failure: Exception = ValueError("it has no address")
        for address in addresses:
            connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            try:
                coding = _coding(key)  # at each address it seals the same first, so no nonce is used for two things
                async with asyncio.timeout(_PATIENCE):
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
        await coding.send(connection, memoryview(token))
        await fill(connection, memoryview(bytearray(len(_WELCOME))))

    async def _receive_all(self, connection: socket.socket, coding: Coding) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(connection, _WELCOME)
            while True:
                while self._inward:
                    memory, done = self._inward.popleft()
                    await coding.receive(connection, memory)
                    self._fabric.received += len(memory)
                    done()
                    del memory, done
                self._expected.clear()
                await self._expected.wait()
        except OSError as error:
            self._lost(f"a payload was lost: {error}")

    def close(self) -> None:
        self._closed()
        self._stands = False
        for task in (self._sending, self._receiving):
            if task is not None:
                task.cancel()  # which closes its connection, once the loop uses that no more
        self._outward.clear()
        self._inward.clear()


def _place(greeting: Greeting) -> _Place:
    place: _Place = msgspec.msgpack.decode(greeting.place, type=_Place)
    return place


def _coding(key: bytes) -> Coding:
    return Sealed(key) if key else Clear()
