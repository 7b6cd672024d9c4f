"""How payloads go over a TCP connection of their own: encrypted, or as they are.

An encrypted piece is the output of AES-256-GCM (NIST SP 800-38D), with the tag at its end; its nonce is its number on
the connection. A key is used for one connection, in one direction: the receiver created it, and sent it over the link.
So an attacker on the network cannot read a piece, nor change, repeat, omit or reorder one unnoticed. TLS does the same
with records of at most 16 KiB, each of which has more overhead around the cipher than the cipher itself takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

__all__ = ["KEY_SIZE", "Clear", "Coding", "Sealed"]

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
