"""Large payloads over TCP connections of their own: with TLS, or without on a network that is trusted.

A lane has a connection in each direction, which whoever sends makes when the first large payload is to go. The socket
is read and written where the payload lies; the event loop's own TLS copies everything twice. The connection comes in
where the links do. What it says first is a number that the receiver told over the link, so that nobody else's
connection is taken for a lane; with TLS the certificates must be those of the link's two nodes as well.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from dragon.agent.bulk import Greeting
from dragon.agent.control import watch_silence
from dragon.runtime.credentials import Contexts, peer_index
from dragon.runtime.log import runtime_log

__all__ = ["LANE", "Direct"]

log = runtime_log("fabric")

LANE = b"\0"
"""What the caller's first byte is; a link's is TLS's 22."""

_WELCOME = memoryview(b"\1")  # what the listening side answers, and all that it ever says
_TOKEN = 8  # bytes
_PATIENCE = 5.0  # seconds for each address
_AT_A_TIME = 2**20  # bytes, then others have their turn

Result = TypeVar("Result")
_Some = Callable[[memoryview], int]
_Possible = Callable[[], Awaitable[None]]


class Direct:
    """An agent's end. The others reach it at `addresses` and `port`; without `contexts` nothing is encrypted."""

    def __init__(self, addresses: list[str], port: int, contexts: Contexts | None) -> None:
        self.contexts = contexts
        self.kind = "TLS" if contexts else "plain TCP"
        self.sent = self.received = 0
        self._place = msgspec.msgpack.encode((addresses, port))
        self._lanes: dict[int, _Beside] = {}

    def greet(self) -> Greeting:
        return Greeting(self.kind, self._place, secrets.randbits(8 * _TOKEN - 1))

    def lane(self, told: Greeting, heard: Greeting, node: int, peer: str, lost: Callable[[str], None]) -> _Beside:
        lane = self._lanes[told.tag] = _Beside(self, heard, node, peer, lost, lambda: self._lanes.pop(told.tag, None))
        return lane

    async def admit(self, connection: socket.socket) -> None:
        """A caller whose first byte is LANE. Raises OSError, ValueError where it is not the other end of a lane."""
        stream = _Stream(connection)
        try:
            opening = bytearray(len(LANE) + _TOKEN)
            await stream.fill(memoryview(opening))
            lane = self._lanes.get(int.from_bytes(opening[len(LANE) :], "little"))
            if lane is None:
                raise ValueError("it names no connection between two agents")
            if self.contexts is not None:
                await stream.shake_hands(self.contexts.server, lane.node, server_side=True)
            lane.take(stream)
        except BaseException:
            stream.close()
            raise

    def close(self) -> None:
        log.info("%s sent %d bytes and received %d", self.kind, self.sent, self.received)


class _Stream:
    """A connection that is only read or only written, without waiting but for the event loop."""

    def __init__(self, connection: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        connection.setblocking(False)

    async def shake_hands(self, context: ssl.SSLContext, node: int, server_side: bool) -> None:
        """Have TLS from here on, with that node. Raises OSError, ValueError."""
        sealed = context.wrap_socket(self._socket, server_side=server_side, do_handshake_on_connect=False)
        self._socket = sealed
        await self._do(sealed.do_handshake, self._readable)
        if (other := peer_index(sealed)) != node:
            raise ValueError(f"node {other} spoke in place of node {node}")

    async def send(self, data: memoryview) -> None:
        """All of it. Raises OSError."""
        await self._move(self._socket.send, data, self._writable)

    async def fill(self, memory: memoryview) -> None:
        """Receive until it is full. Raises OSError, at an end before that too."""
        await self._move(self._receive, memory, self._readable)

    def close(self) -> None:
        self._socket.close()

    def _receive(self, memory: memoryview) -> int:
        count = self._socket.recv_into(memory)
        if count == 0:
            raise ConnectionResetError("the connection was closed")
        return count

    async def _move(self, some: _Some, memory: memoryview, possible: _Possible) -> None:
        moved = 0
        while memory:
            count = await self._do(partial(some, memory), possible)  # with TLS a record at a time, 16 KiB
            memory = memory[count:]
            moved += count
            if moved >= _AT_A_TIME:
                await asyncio.sleep(0)
                moved = 0

    async def _do(self, action: Callable[[], Result], possible: _Possible) -> Result:
        while True:
            try:
                return action()
            except ssl.SSLWantReadError:
                await self._readable()
            except ssl.SSLWantWriteError:
                await self._writable()
            except BlockingIOError:
                await possible()

    async def _readable(self) -> None:
        await self._event(self._loop.add_reader, self._loop.remove_reader)

    async def _writable(self) -> None:
        await self._event(self._loop.add_writer, self._loop.remove_writer)

    async def _event(self, add: Callable[..., object], remove: Callable[[int], object]) -> None:
        event, descriptor = asyncio.Event(), self._socket.fileno()
        add(descriptor, event.set)
        try:
            await event.wait()
        finally:
            remove(descriptor)


class _Beside:
    """The lane beside one link."""

    def __init__(
        self,
        fabric: Direct,
        heard: Greeting,
        node: int,
        peer: str,
        lost: Callable[[str], None],
        closed: Callable[[], object],
    ) -> None:
        self.node = node
        self._fabric = fabric
        self._place, self._token = heard.place, heard.tag
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

    def take(self, stream: _Stream) -> None:
        """The connection that payloads come by. Raises ValueError where there is one."""
        if self._receiving is not None:
            raise ValueError("it names a connection that is there")
        self._receiving = asyncio.ensure_future(self._receive_all(stream))

    def send(self, payload: memoryview) -> None:
        self._outward.append(payload)
        self._there.set()

    def receive(self, memory: Any, done: Callable[[], None]) -> None:
        self._inward.append((memoryview(memory), done))
        self._expected.set()

    async def _send_all(self) -> None:
        try:
            stream = await self._connect()
        except (OSError, ValueError, OverflowError) as error:
            kind = self._fabric.kind
            log.warning("%s cannot be reached by %s (%s); payloads go there over the link", self._peer, kind, error)
            return
        try:
            self._stands = True
            while True:
                while self._outward:
                    payload = self._outward.popleft()
                    await stream.send(payload)
                    self._fabric.sent += len(payload)
                self._there.clear()
                await self._there.wait()
        except OSError as error:
            self._lost(f"a payload was lost: {error}")
        finally:
            stream.close()

    async def _connect(self) -> _Stream:
        addresses, port = msgspec.msgpack.decode(self._place, type=tuple[list[str], int])
        failure: Exception = ValueError("it has no address")
        for address in addresses:
            try:
                async with asyncio.timeout(_PATIENCE):
                    return await self._connect_to(address, port)
            except OSError as error:  # TimeoutError is one
                failure = error
        raise failure

    async def _connect_to(self, address: str, port: int) -> _Stream:
        connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        stream = _Stream(connection)
        try:
            await asyncio.get_running_loop().sock_connect(connection, (address, port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            watch_silence(connection)
            await stream.send(memoryview(LANE + self._token.to_bytes(_TOKEN, "little")))
            if self._fabric.contexts is not None:
                await stream.shake_hands(self._fabric.contexts.client, self.node, server_side=False)
            await stream.fill(memoryview(bytearray(len(_WELCOME))))
        except BaseException:
            stream.close()
            raise
        return stream

    async def _receive_all(self, stream: _Stream) -> None:
        try:
            await stream.send(_WELCOME)
            while True:
                while self._inward:
                    memory, done = self._inward.popleft()
                    await stream.fill(memory)
                    self._fabric.received += len(memory)
                    done()
                self._expected.clear()
                await self._expected.wait()
        except OSError as error:
            self._lost(f"a payload was lost: {error}")
        finally:
            stream.close()

    def close(self) -> None:
        self._closed()
        self._stands = False
        for task in (self._sending, self._receiving):
            if task is not None:
                task.cancel()  # which closes its connection, once the loop uses that no more
        self._outward.clear()
        self._inward.clear()
