"""Large payloads over plain TCP, for a network that is trusted: neither encrypted nor signed, and so at its full speed.

Each lane has a connection in each direction, made beside the link by whoever sends. What it says first is a number that
the receiver told over the link, so nobody else's connection is taken for a lane.
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
from dragon.runtime.log import runtime_log

__all__ = ["Plain"]

log = runtime_log("fabric")

_TOKEN = 8  # bytes
_PATIENCE = 5.0  # seconds that a caller has to say its number
_MOST_CALLERS = 64
_AT_A_TIME = 8 * 2**20  # bytes, then others have their turn


class Plain:
    """An agent's end: where others connect to. Raises OSError where it cannot listen."""

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=1024)
        self._listener.setblocking(False)
        self._place = msgspec.msgpack.encode((address, self._listener.getsockname()[1]))
        self._lanes: dict[int, _Beside] = {}
        self._callers: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._listener, self._on_caller)
        self.sent = self.received = 0

    def greet(self) -> Greeting:
        return self._place, secrets.randbits(8 * _TOKEN - 1)

    def lane(self, told: Greeting, heard: Greeting, peer: str, lost: Callable[[str], None]) -> _Beside:
        lane = self._lanes[told[1]] = _Beside(self, heard, peer, lost, lambda: self._lanes.pop(told[1], None))
        return lane

    def close(self) -> None:
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for caller in self._callers:
            caller.cancel()
        log.info("plain TCP sent %d bytes and received %d", self.sent, self.received)

    def _on_caller(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:  # the caller is gone again
            return
        connection.setblocking(False)
        if len(self._callers) >= _MOST_CALLERS:
            connection.close()
            return
        caller = asyncio.ensure_future(self._admit(connection))
        self._callers.add(caller)
        caller.add_done_callback(self._callers.discard)

    async def _admit(self, connection: socket.socket) -> None:
        token = bytearray(_TOKEN)
        lane = None
        try:
            async with asyncio.timeout(_PATIENCE):
                await _fill(self._loop, connection, memoryview(token))
            lane = self._lanes.get(int.from_bytes(token, "little"))
        except (TimeoutError, OSError) as error:
            log.debug("a caller said nothing of use: %r", error)
        finally:
            if lane is None or not lane.take(connection):
                connection.close()


class _Beside:
    """The lane beside one link."""

    def __init__(
        self, fabric: Plain, heard: Greeting, peer: str, lost: Callable[[str], None], closed: Callable[[], object]
    ) -> None:
        self._fabric = fabric
        self._place, self._token = heard
        self._peer = peer
        self._lost = lost
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._outward: deque[memoryview] = deque()
        self._inward: deque[tuple[memoryview, Callable[[], None]]] = deque()
        self._expected = asyncio.Event()
        self._there = asyncio.Event()
        self._stands = False
        # Payloads go over the link until the connection stands.
        self._sending = asyncio.ensure_future(self._send_all())
        self._receiving: asyncio.Task[None] | None = None

    def open(self) -> bool:
        return self._stands

    def take(self, connection: socket.socket) -> bool:
        """The connection that payloads come by; whether there was none yet."""
        if self._receiving is not None:
            return False
        watch_silence(connection)
        self._receiving = asyncio.ensure_future(self._receive_all(connection))
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
            address, port = msgspec.msgpack.decode(self._place, type=tuple[str, int])
            with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as connection:
                connection.setblocking(False)
                await self._loop.sock_connect(connection, (address, port))
                watch_silence(connection)
                await self._loop.sock_sendall(connection, self._token.to_bytes(_TOKEN, "little"))
                self._stands = True
                await self._send_over(connection)
        except (OSError, msgspec.MsgspecError, OverflowError) as error:
            if self._stands:
                self._lost(f"a payload was lost: {error}")
            else:
                log.warning("%s cannot be reached by plain TCP (%s); payloads go there with TLS", self._peer, error)

    async def _send_over(self, connection: socket.socket) -> None:
        while True:
            while self._outward:
                payload = self._outward.popleft()
                for start in range(0, len(payload), _AT_A_TIME):
                    await self._loop.sock_sendall(connection, payload[start : start + _AT_A_TIME])
                self._fabric.sent += len(payload)
                del payload  # or what it lies in is kept until the next one comes
            self._there.clear()
            await self._there.wait()

    async def _receive_all(self, connection: socket.socket) -> None:
        try:
            while True:
                while self._inward:
                    memory, done = self._inward.popleft()
                    await _fill(self._loop, connection, memory)
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


async def _fill(loop: asyncio.AbstractEventLoop, connection: socket.socket, memory: memoryview) -> None:
    """Receive until it is full. Raises OSError at an end before that."""
    while memory:
        count = await loop.sock_recv_into(connection, memory[:_AT_A_TIME])
        if count == 0:
            raise ConnectionResetError("the connection was closed")
        memory = memory[count:]
