"""How payloads go over a TCP connection of their own: sealed, or as they are.

A sealed piece is what AES-256-GCM (NIST SP 800-38D) makes of it, with the tag at its end; its nonce is its number on
the connection. A key is used for one connection, in one direction: its receiver made it, and told it over the link. So
whoever can reach the network can neither read a piece nor change, repeat, omit or reorder one unnoticed. TLS does the
same with records of at most 16 KiB, each of which costs more around the cipher than in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Protocol

__all__ = ["KEY_SIZE", "Clear", "Coding", "Sealed", "fill"]

KEY_SIZE = 32  # bytes
_AT_A_TIME = 8 * 2**20  # bytes, then others have their turn
_PIECE = 512 * 1024  # bytes, which stay in a processor's cache
_KEPT = 8  # buffers for a piece; all lanes of an agent may have two each for a while, but not for ever
_TAG = 16
_NONCE = 12

_buffers: list[memoryview] = []


@contextlib.contextmanager
def _buffer() -> Iterator[memoryview]:
    """Memory for one sealed piece."""
    buffer = _buffers.pop() if _buffers else memoryview(bytearray(_PIECE + _TAG))
    try:
        yield buffer
    finally:
        if len(_buffers) < _KEPT:
            _buffers.append(buffer)


class Coding(Protocol):
    """One direction of a connection."""

    async def send(self, connection: socket.socket, payload: memoryview) -> None:
        """Send a payload whole. Raises OSError."""
        ...

    async def receive(self, connection: socket.socket, memory: memoryview) -> None:
        """Fill `memory` with the next payload, of that size. Raises OSError, also where it is not what was sent."""
        ...


class Clear:
    """As they are."""

    async def send(self, connection: socket.socket, payload: memoryview) -> None:
        loop = asyncio.get_running_loop()
        for start in range(0, len(payload), _AT_A_TIME):
            await loop.sock_sendall(connection, payload[start : start + _AT_A_TIME])

    async def receive(self, connection: socket.socket, memory: memoryview) -> None:
        await fill(connection, memory)


class Sealed:
    """Sealed with `key`, of 32 bytes, which nothing else may be sealed with."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # 40 ms, which few nodes of a short run need

        self._cipher = AESGCM(key)
        self._pieces = 0

    def _nonce(self) -> bytes:
        self._pieces += 1
        return self._pieces.to_bytes(_NONCE, "little")

    async def send(self, connection: socket.socket, payload: memoryview) -> None:
        loop = asyncio.get_running_loop()
        with _buffer() as buffer:
            for start in range(0, len(payload), _PIECE):
                if start and start % _AT_A_TIME == 0:
                    await asyncio.sleep(0)  # a connection that takes everything at once lets nobody else have a turn
                piece = payload[start : start + _PIECE]
                sealed = buffer[: len(piece) + _TAG]
                self._cipher.encrypt_into(self._nonce(), piece, None, sealed)
                await loop.sock_sendall(connection, sealed)

    async def receive(self, connection: socket.socket, memory: memoryview) -> None:
        from cryptography.exceptions import InvalidTag

        with _buffer() as buffer:
            for start in range(0, len(memory), _PIECE):
                piece = memory[start : start + _PIECE]
                sealed = buffer[: len(piece) + _TAG]
                await fill(connection, sealed)
                try:
                    self._cipher.decrypt_into(self._nonce(), sealed, None, piece)
                except InvalidTag:
                    raise ConnectionAbortedError("somebody changed it on its way") from None


async def fill(connection: socket.socket, memory: memoryview) -> None:
    """Receive until it is full. Raises OSError at an end before that."""
    loop = asyncio.get_running_loop()
    while memory:
        count = await loop.sock_recv_into(connection, memory[:_AT_A_TIME])
        if count == 0:
            raise ConnectionResetError("the connection was closed")
        memory = memory[count:]
