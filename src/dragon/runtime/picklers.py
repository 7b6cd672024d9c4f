"""Picklers that programs bring for keys and values."""

from __future__ import annotations

import io
from typing import Any

__all__ = ["pickler_of", "strip_pickled_bytes"]


class _OfFiles:
    """A pickler that writes to a file and reads from one, as one of bytes."""

    def __init__(self, pickler: Any) -> None:
        self._pickler = pickler

    def dumps(self, value: Any) -> bytes:
        file = io.BytesIO()
        self._pickler.dump(value, file)
        return file.getvalue()

    def loads(self, data: bytes) -> Any:
        return self._pickler.load(io.BytesIO(data))


def pickler_of(given: Any) -> Any:
    """Something with `dumps` and `loads`: what was given, or around it where it has `dump` and `load` instead.

    Raises TypeError for what has neither.
    """
    if given is None or (hasattr(given, "dumps") and hasattr(given, "loads")):
        return given
    if hasattr(given, "dump") and hasattr(given, "load"):
        return _OfFiles(given)
    raise TypeError(f"a pickler has dumps and loads, or dump and load, and {given!r} has neither pair")


def strip_pickled_bytes(byte_str: bytes) -> bytes:
    """A pickle without the marks at its start and its end that are the same for every object (PEP 3154).

    For telling pickled keys apart by their bytes; what it returns cannot be unpickled.
    """
    return byte_str.removeprefix(b"\x80\x05\x95").removesuffix(b".").removesuffix(b"\x94")
