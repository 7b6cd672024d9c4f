"""ctypes objects over shared words: in place on the node that holds them, as a mirror on others.

A mirror is an object of the same type, which reads the shared words at each access, and writes back the bytes that an
assignment changed. Each structure or array within it is a mirror of its part.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from typing import Any

from dragon.runtime.handle import Words
from dragon.runtime.nodes import node_of_memory
from dragon.runtime.remote import RemoteWords

__all__ = ["fill", "in_words", "kind_of", "words_for"]

_MOST = 2**32 - 1  # words
_COMPOUND = (ctypes.Structure, ctypes.Union, ctypes.Array)


def words_for(kind: Any, m_uid: Any = None) -> Words:
    """Allocate memory for an object of that ctypes type, on the node of `m_uid` or this one. Raises MemoryError."""
    count = max(1, -(-ctypes.sizeof(kind) // 8))
    if count > _MOST:
        raise MemoryError(f"{ctypes.sizeof(kind)} bytes are more than the {_MOST * 8} that one shared object can have")
    return Words._on(node_of_memory(m_uid), count)


def in_words(kind: Any, words: Words) -> Any:
    """Return the object of that ctypes type that the words hold."""
    if not isinstance(words, RemoteWords):
        return kind.from_buffer(words)
    mirror = _part(kind, words, bytearray(ctypes.sizeof(kind)), 0)
    mirror._refresh()
    return mirror


def fill(words: Words, obj: Any) -> None:
    """Copy a ctypes object into the words of its type."""
    if isinstance(words, RemoteWords):
        words._write(0, bytes(obj))
    else:
        ctypes.memmove(ctypes.addressof(in_words(type(obj), words)), ctypes.addressof(obj), ctypes.sizeof(obj))


def kind_of(obj: Any) -> Any:
    """Return the ctypes type of such an object."""
    kind = type(obj)
    return kind.__bases__[1] if issubclass(kind, _Mirror) else kind


@functools.cache
def _mirror(kind: Any) -> Any:
    bases = (_ArrayMirror, kind) if issubclass(kind, ctypes.Array) else (_Mirror, kind)
    return type(kind)(kind.__name__, bases, {"_words": None, "__module__": kind.__module__})


def _part(kind: Any, words: RemoteWords, memory: bytearray, offset: int) -> Any:
    """Return the mirror of the object at `offset` bytes in the words. `memory` is the local buffer of all the words."""
    mirror = _mirror(kind).from_buffer(memory, offset)
    mirror._words, mirror._memory, mirror._offset = words, memory, offset
    return mirror


class _Mirror:
    _words: Any
    _memory: bytearray
    _offset: int

    def _inner(self, found: Any) -> Any:
        """Return a mirror in place of a structure or array within this one; any other value unchanged."""
        if isinstance(found, _COMPOUND) and not isinstance(found, _Mirror):
            start = ctypes.addressof(found) - ctypes.addressof(self)  # type: ignore[arg-type]
            if 0 <= start < max(1, ctypes.sizeof(self)):  # type: ignore[arg-type]
                return _part(type(found), self._words, self._memory, self._offset + start)
        return found

    def _pull(self, start: int, size: int) -> None:
        data = self._words._read(self._offset + start, size)
        ctypes.memmove(ctypes.addressof(self) + start, data, size)  # type: ignore[arg-type]

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
            self._words._write(self._offset + start, after[start:position])

    def _refresh(self) -> bytes:
        self._pull(0, ctypes.sizeof(self))  # type: ignore[arg-type]
        return bytes(self)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_"):
            return super().__getattribute__(name)
        self._refresh()
        return self._inner(super().__getattribute__(name))

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
        found = super().__getitem__(index)  # type: ignore[misc]
        return [self._inner(one) for one in found] if isinstance(found, list) else self._inner(found)

    def __setitem__(self, index: Any, value: Any) -> None:
        before = self._refresh()
        super().__setitem__(index, value)  # type: ignore[misc]
        self._push(before)

    def __iter__(self) -> Iterator[Any]:
        return iter(self[:])
