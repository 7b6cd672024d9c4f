"""How payloads go over a TCP connection of their own: sealed, or as they are.

A sealed piece is what AES-256-GCM (NIST SP 800-38D) makes of it, with the tag at its end; its nonce is its number on
the connection. A key is used for one connection, in one direction: its receiver made it, and told it over the link. So
whoever can reach the network can neither read a piece nor change, repeat, omit or reorder one unnoticed. TLS does the
same with records of at most 16 KiB, each of which costs more around the cipher than in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

__all__ = ["KEY_SIZE", "Clear", "Coding", "Sealed"]

KEY_SIZE = 32  # bytes
_PIECE = 512 * 1024  # bytes, which stay in a processor's cache
_KEPT = 8  # buffers for a piece; all lanes of an agent may have two each for a while, but not for ever
_TAG = 16
_NONCE = 12

_buffers: list[memoryview] = []


class Coding(Protocol):
    """One direction of a connection."""

    def outward(self, payload: memoryview) -> Iterator[memoryview]:
        """What to send for a payload. A piece is used no more when the next one is asked for."""
        ...

    def inward(self, memory: memoryview) -> Iterator[memoryview]:
        """What to fill with what comes, so that the next payload is in `memory`, which has its size. Raises OSError
        when more is asked for and what came is not what was sent."""
        ...


class Clear:
    """As they are."""

    def outward(self, payload: memoryview) -> Iterator[memoryview]:
        """Yield the pieces of a payload that are sent."""
        return _pieces(payload)

    def inward(self, memory: memoryview) -> Iterator[memoryview]:
        """Yield the pieces of `memory` that are to be filled."""
        return _pieces(memory)


class Sealed:
    """Sealed with `key`, of 32 bytes, which nothing else may be sealed with."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # 40 ms, which few nodes of a short run need

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
        """Yield buffers to fill, and decrypt each into `memory`. Raises ConnectionAbortedError if authentication
        fails."""
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
    """Its pieces, each with memory for what it is when it is sealed."""
    buffer = _buffers.pop() if _buffers else memoryview(bytearray(_PIECE + _TAG))
    try:
        for piece in _pieces(payload):
            yield piece, buffer[: len(piece) + _TAG]
    finally:
        if len(_buffers) < _KEPT:
            _buffers.append(buffer)
