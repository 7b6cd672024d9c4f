"""Small helper functions for programs."""

from __future__ import annotations

import base64
import binascii
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Self

from dragon.infrastructure.lazy_modules import submodule
from dragon.utils.time_keeper import TimeKeeper

if TYPE_CHECKING:
    from dragon.utils.local_values import get_local_kv, set_local_kv

__all__ = [
    "B64",
    "TimeKeeper",
    "b64decode",
    "b64encode",
    "get_cpu_count",
    "get_local_kv",
    "hash",
    "host_id",
    "set_local_kv",
    "strtobool",
]


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


def b64encode(the_bytes: bytes) -> str:
    """Return the base64 text of bytes. Raises TypeError for what is not bytes."""
    return B64.bytes_to_str(the_bytes)


def b64decode(the_str: str) -> bytes:
    """Return the bytes of base64 text. Raises ValueError for invalid text."""
    return B64.str_to_bytes(the_str)


def host_id() -> int:
    """Return the number of this node, unique in the run: its `h_uid`."""
    from dragon.native.machine import current

    return current().h_uid


def hash(byte_str: bytes) -> int:
    """Return a 32-bit hash of bytes, the same in every process and every run."""
    return int.from_bytes(blake2b(byte_str, digest_size=4).digest(), "little")


def get_cpu_count() -> int:
    """Return the number of CPUs of this node that the run may use."""
    from dragon.native.machine import current

    return current().num_cpus


def strtobool(val: str) -> bool:
    """Return True for "yes", "true", "on", "1" and the like, False for their opposites. Raises ValueError for other
    text."""
    word = val.strip().lower()
    if word in ("y", "yes", "t", "true", "on", "1"):
        return True
    if word in ("n", "no", "f", "false", "off", "0"):
        return False
    raise ValueError(f"{val!r} says neither yes nor no")


def __getattr__(name: str) -> Any:
    if name in ("get_local_kv", "set_local_kv"):
        from dragon.utils import local_values

        return getattr(local_values, name)
    return submodule(__name__, name)
