"""ctypes objects over shared words: in place on the node that holds them, as a mirror on others.

A mirror reads what it is asked for when it is asked, and writes back the bytes that a change made different. It is an
object of the same type. What one takes out of it, a structure within a structure, say, is a copy.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from typing import Any

from dragon.runtime.handle import Words
from dragon.runtime.remote import RemoteWords

__all__ = ["in_words", "kind_of", "words_for"]


def words_for(kind: Any) -> Words:
    """New memory for an object of that ctypes type."""
    return Words(max(1, -(-ctypes.sizeof(kind) // 8)))


def in_words(kind: Any, words: Words) -> Any:
    """The object of that ctypes type that the words hold."""
    if not isinstance(words, RemoteWords):
        return kind.from_buffer(words)
    mirror = _mirror(kind).from_buffer(bytearray(ctypes.sizeof(kind)))
    mirror._words = words
    mirror._pull(0, ctypes.sizeof(kind))
    return mirror


def kind_of(obj: Any) -> Any:
    """The ctypes type of such an object."""
    kind = type(obj)
    return kind.__bases__[1] if issubclass(kind, _Mirror) else kind


@functools.cache
def _mirror(kind: Any) -> Any:
    bases = (_ArrayMirror, kind) if issubclass(kind, ctypes.Array) else (_Mirror, kind)
    return type(kind)(kind.__name__, bases, {"_words": None, "__module__": kind.__module__})


class _Mirror:
    _words: Any

    def _pull(self, start: int, size: int) -> None:
        ctypes.memmove(ctypes.addressof(self) + start, self._words._read(start, size), size)  # type: ignore[arg-type]

    def _push(self, before: bytes) -> None:
        after = bytes(self)
        position, end = 0, len(after)
        while position < end:
            if before[position] == after[position]:
                position += 1
                continue
            start = position
            while position < end and before[position] != after[position]:
                position += 1
            self._words._write(start, after[start:position])

    def _refresh(self) -> bytes:
        self._pull(0, ctypes.sizeof(self))  # type: ignore[arg-type]
        return bytes(self)

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_"):
            self._refresh()
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
            return
        before = self._refresh()
        super().__setattr__(name, value)
        self._push(before)


class _ArrayMirror(_Mirror):
    _type_: Any
    _length_: int

    def __getitem__(self, index: Any) -> Any:
        size = ctypes.sizeof(self._type_)
        if isinstance(index, int) and -self._length_ <= index < self._length_:
            self._pull(index % self._length_ * size, size)
        else:
            self._refresh()
        return super().__getitem__(index)  # type: ignore[misc]

    def __setitem__(self, index: Any, value: Any) -> None:
        before = self._refresh()
        super().__setitem__(index, value)  # type: ignore[misc]
        self._push(before)

    def __iter__(self) -> Iterator[Any]:
        return iter(self[:])
