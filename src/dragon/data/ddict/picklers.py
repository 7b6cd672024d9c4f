"""Picklers that programs bring for keys and values."""

from __future__ import annotations

import io
from typing import Any

__all__ = ["pickler_of"]


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
