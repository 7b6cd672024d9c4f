"""Bytes as base64 text, for arguments and environment variables."""

from __future__ import annotations

import base64
import binascii
from typing import Self

__all__ = ["B64"]


class B64:
    """Bytes whose str() is their base64 text. Raises TypeError for what is not bytes."""

    def __init__(self, data: bytes) -> None:
        self._text = self.bytes_to_str(data)

    def __str__(self) -> str:
        return self._text

    def decode(self) -> bytes:
        """Return the bytes."""
        return self.str_to_bytes(self._text)

    @classmethod
    def from_str(cls, serialized_str: str) -> Self:
        """Return the B64 object of a base64 text. Raises ValueError for invalid text."""
        return cls(cls.str_to_bytes(serialized_str))

    @staticmethod
    def bytes_to_str(the_bytes: bytes) -> str:
        """Return the base64 text of bytes. Raises TypeError for what is not bytes."""
        if not isinstance(the_bytes, bytes | bytearray | memoryview):
            raise TypeError(f"expected bytes, not {type(the_bytes).__name__}")
        return base64.b64encode(the_bytes).decode("ascii")

    @staticmethod
    def str_to_bytes(the_str: str) -> bytes:
        """Return the bytes of base64 text. Raises ValueError for invalid text."""
        try:
            return base64.b64decode(the_str, validate=True)
        except binascii.Error as error:
            raise ValueError(f"{the_str[:40]!r} is not base64: {error}") from None
