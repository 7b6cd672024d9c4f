"""How a connection between two agents begins: both show a certificate of the run, by TLS 1.3, and then exchange, over
TLS, the keys with which the wire encrypts everything after that, and their ends of a fabric for large payloads.

Frames always go over the connection, so a payload has its place among them. Those behind a payload that has not arrived
wait for it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

from dragon import _core
from dragon.control import watch_silence
from dragon.infrastructure.messages import decoder_of, encode
from dragon.infrastructure.structs import msgspec
from dragon.runtime.credentials import peer_index

_KEY_SIZE = 32  # bytes, of AES-256-GCM
_READ = 16 * 1024
_LARGEST_HELLO = 64 * 1024


class Greeting(NamedTuple):
    """What one agent sends another, encrypted, about its end of a new lane."""

    kind: str
    """The kind of its fabric."""
    place: bytes
    """Its address on the fabric, encoded."""
    tag: int
    """The tag of the first payload that it expects."""


class Lane(Protocol):
    """A way for the payloads of one connection, in both directions."""

    def open(self) -> bool:
        """Return whether payloads can be sent this way."""

    def send(self, payload: memoryview) -> None:
        """Send the next payload. It is kept, and must not change, until it is sent."""

    def receive(self, memory: _core.Payload, done: Callable[[], None]) -> None:
        """Fill `memory` with the next payload that was not requested yet, then call `done`."""

    def close(self) -> None:
        """Close the lane, because the connection is closed: nothing more is received."""


class Fabric(Protocol):
    """What an agent has for payloads besides its connections."""

    def greet(self) -> Greeting:
        """Return what to send to the other side of a new connection."""

    def lane(self, own: Greeting, their: Greeting, peer: str, lost: Callable[[str], None]) -> Lane:
        """Return the lane of a connection on which both sides have greeted; `lost` is called if it fails."""

    def close(self) -> None:
        """Stop using the fabric. What is not finished is given up."""


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """What each side says: the key of what it sends, its end of the fabric, and why it refuses the other node."""

    key: bytes = b""
    greeting: Greeting | None = None
    refused: str | None = None


@dataclass
class Shaken:
    """A connection whose other end is `node`: what both sides said, and the bytes that came after that."""

    node: int
    own: Hello
    their: Hello
    early: bytes = field(repr=False)


_decode: Callable[[bytes], Hello] = decoder_of(Hello).decode


async def shake_hands(
    connection: socket.socket, context: ssl.SSLContext, is_server: bool, hello: Callable[[int], Hello]
) -> Shaken:
    """Authenticate the other end. `hello` returns what to say to a node. Raises OSError, ValueError."""
    channel = _Tls(connection, context, is_server)
    await channel.do(channel.tls.do_handshake)
    node = peer_index(channel.tls)
    own = msgspec.structs.replace(hello(node), key=os.urandom(_KEY_SIZE))
    data = encode(own)
    await channel.do(lambda: channel.tls.write(len(data).to_bytes(4, "little") + data))
    size = int.from_bytes(await channel.read(4), "little")
    if size > _LARGEST_HELLO:
        raise ConnectionAbortedError(f"the other agent sent a greeting of {size} bytes")
    try:
        their = _decode(await channel.read(size))
    except msgspec.MsgspecError as error:
        raise ConnectionAbortedError(f"the other agent sent a malformed greeting: {error}") from error
    if their.refused is None and len(their.key) != _KEY_SIZE:
        raise ConnectionAbortedError("the other agent sent no key")
    watch_silence(connection)
    return Shaken(node, own, their, channel.rest())


class _Tls:
    """TLS over a socket, which reads nothing that comes after the last TLS record."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, is_server: bool) -> None:
        self._connection = connection
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=is_server)
        self._loop = asyncio.get_running_loop()

    async def do(self, step: Callable[[], object]) -> object:
        while True:
            try:
                result, again = step(), False
            except ssl.SSLWantReadError:
                again = True
            except ssl.SSLError:
                await self._flush()  # the alert that says why
                raise
            await self._flush()
            if not again:
                return result
            data = await self._loop.sock_recv(self._connection, _READ)
            if not data:
                raise ConnectionResetError("the connection was closed")
            self._incoming.write(data)

    async def _flush(self) -> None:
        data = self._outgoing.read()
        if data:
            await self._loop.sock_sendall(self._connection, data)

    async def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = await self.do(partial(self.tls.read, size - len(data)))
            if not isinstance(part, bytes) or not part:
                raise ConnectionResetError("the connection was closed")
            data += part
        return data

    def rest(self) -> bytes:
        return self._incoming.read()
