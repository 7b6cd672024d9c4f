"""The state of pickling, array types of ctypes, and adapters of picklers that a program provides."""

from __future__ import annotations

import io
import operator
import sys
import threading
from collections.abc import Callable
from typing import Any

Send = Callable[[], None]
Mention = tuple[Any, Send]


class _State(threading.local):
    names: list[Mention] | None = None  # the handles pickled in this attempt: a failed one announces none
    attachments: Callable[[Any, Send], None] | None = None
    is_for_another_node = False


state = _State()


def is_nameless(obj: Any) -> bool:
    """Return whether `obj` is an array type that its module does not have under its name."""
    return _is_array(obj) and getattr(sys.modules.get(obj.__module__), obj.__qualname__, None) is not obj


def reduce_type(kind: Any) -> Any:
    """Return the __reduce__() value of an array type."""
    return operator.mul, (kind._type_, kind._length_)


def _is_array(kind: object) -> bool:
    return type(kind).__name__ == "PyCArrayType"


class _OfFiles:
    """A pickler with dumps() and loads(), from one that writes to and reads from files."""

    def __init__(self, pickler: Any) -> None:
        self._pickler = pickler

    def dumps(self, value: object) -> bytes:
        file = io.BytesIO()
        self._pickler.dump(value, file)
        return file.getvalue()

    def loads(self, data: bytes) -> Any:
        return self._pickler.load(_ToRead(data))


class _ToRead(io.BytesIO):
    """A value as a file: at its end the first read is empty, and the next ones raise EOFError, as with dragonhpc."""

    _ended = False

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        if not found and size != 0:
            if self._ended:
                raise EOFError("the value has been read to its end")
            self._ended = True
        return found


def pickler_of(given: object) -> Any:
    """Return an object with `dumps` and `loads`: the given one, or an adapter if it has `dump` and `load`."""
    if given is None or (hasattr(given, "dumps") and hasattr(given, "loads")):
        return given
    if hasattr(given, "dump") and hasattr(given, "load"):
        return _OfFiles(given)
    raise TypeError(f"a pickler has dumps and loads, or dump and load, and {given!r} has neither pair")


def strip_pickled_bytes(byte_str: bytes) -> bytes:
    """Return a pickle without the marks at its start and end that are the same for every object (PEP 3154)."""
    return byte_str.removeprefix(b"\x80\x05\x95").removesuffix(b".").removesuffix(b"\x94")
