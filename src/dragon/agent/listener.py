"""Where other agents call this one, with links and with lanes beside them. Who is none of them is refused, which is
logged once."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from functools import partial

from dragon.agent.direct import LANE, Direct
from dragon.runtime.log import runtime_log

__all__ = ["Listener"]

log = runtime_log("links")

_HANDSHAKE_WITHIN = 5.0
_MOST_HANDSHAKES = 256  # at a time; the others wait in the kernel's queue
_PAUSE = 0.1


class Listener:
    """Accepts connections on `listener`: links, which `protocol` makes something to serve, and lanes of `direct`."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        protocol: Callable[[], asyncio.BaseProtocol],
        direct: Direct,
    ) -> None:
        self._listener = listener
        self._context = context
        self._protocol = protocol
        self._direct = direct
        self._loop = asyncio.get_running_loop()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._told = False
        self._open = True
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accept nobody any more."""
        self._open = False
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for handshake in self._handshakes:
            handshake.cancel()

    def _listen(self) -> None:
        if self._open:
            self._loop.add_reader(self._listener, self._on_caller)

    def _on_caller(self) -> None:
        try:
            connection, address = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # the caller is gone again, or this process is out of descriptors
            self._tell(f"a connection could not be accepted: {error.strerror}")
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_PAUSE, self._listen)
            return
        connection.setblocking(False)
        handshake = asyncio.ensure_future(self._greet(connection, address[0]))
        self._handshakes.add(handshake)
        handshake.add_done_callback(partial(self._greeted, connection))
        if len(self._handshakes) >= _MOST_HANDSHAKES:
            self._loop.remove_reader(self._listener)

    def _greeted(self, connection: socket.socket, handshake: asyncio.Task[None]) -> None:
        self._handshakes.discard(handshake)
        if handshake.cancelled():
            connection.close()
        self._listen()

    async def _greet(self, connection: socket.socket, address: str) -> None:
        try:
            async with asyncio.timeout(_HANDSHAKE_WITHIN):
                if await self._first_byte(connection) == LANE:
                    await self._admit_lane(connection)
                    return
            await self._loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._context, ssl_handshake_timeout=_HANDSHAKE_WITHIN
            )
        except OSError as error:  # TimeoutError is one
            connection.close()
            why = error or type(error).__name__
            self._tell(f"a caller from {address} was refused: it has no certificate of this run ({why})")

    async def _admit_lane(self, connection: socket.socket) -> None:
        try:
            await self._direct.admit(connection)
        except ConnectionRefusedError as error:
            connection.close()
            log.debug("a connection for large payloads was refused: %s", error)

    async def _first_byte(self, connection: socket.socket) -> bytes:
        """What the caller begins with, which is still there to be read."""
        there, descriptor = asyncio.Event(), connection.fileno()
        self._loop.add_reader(descriptor, there.set)
        try:
            await there.wait()
        finally:
            self._loop.remove_reader(descriptor)
        return connection.recv(1, socket.MSG_PEEK)

    def _tell(self, text: str) -> None:
        if not self._told:
            self._told = True
            log.warning("%s (this is logged once)", text)
