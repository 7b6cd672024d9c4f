"""ctypes objects over shared words: in place on the node that holds them, as a mirror on others.

A mirror is an object of the same type, which reads the shared words at each access, and writes back the bytes that an
assignment changed. Each structure or array within it is a mirror of its part.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Iterator
from typing import Any

from dragon.runtime.copies import Copy
from dragon.runtime.handle import Words, node_of_memory
from dragon.runtime.remote import RemoteWords

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
    return mirror_of(kind, words)


def mirror_of(kind: Any, words: Any) -> Any:
    """Return the mirror of an object of that ctypes type in words of another node."""
    mirror = _part(kind, Copy(words, ctypes.sizeof(kind), _grain(kind)), 0)
    mirror._refresh()
    return mirror


def with_views(obj: object) -> Any:
    """Return the object, of which the program may have views from now on, such as NumPy's."""
    if isinstance(obj, _Mirror):
        obj._copy.have_views()
    return obj


def _grain(kind: Any) -> int:
    """Return the size of an array's elements, in bytes; 1 if they have parts."""
    while issubclass(kind, ctypes.Array):
        kind = kind._type_
    return 1 if issubclass(kind, _COMPOUND) else ctypes.sizeof(kind)


def fill(words: Words, obj: Any) -> None:
    """Copy a ctypes object into the words of its type."""
    if isinstance(words, RemoteWords):
        words._write(0, bytes(obj))
    else:
        ctypes.memmove(ctypes.addressof(in_words(type(obj), words)), ctypes.addressof(obj), ctypes.sizeof(obj))


def kind_of(obj: object) -> Any:
    """Return the ctypes type of such an object."""
    kind = type(obj)
    return kind.__bases__[1] if issubclass(kind, _Mirror) else kind


@functools.cache
def _mirror(kind: Any) -> Any:
    bases = (_ArrayMirror, kind) if issubclass(kind, ctypes.Array) else (_Mirror, kind)
    return type(kind)(kind.__name__, bases, {"_copy": None, "__module__": kind.__module__})


def _part(kind: object, copy: Copy, offset: int) -> Any:
    """Return the mirror of the object at `offset` bytes in the words of that copy."""
    mirror = _mirror(kind).from_buffer(copy.memory, offset)
    mirror._copy, mirror._offset = copy, offset
    return mirror


class _Mirror:
    _copy: Copy
    _offset: int

    def _inner(self, found: object) -> object:
        """Return a mirror in place of a structure or array within this one; any other value unchanged."""
        if isinstance(found, _COMPOUND) and not isinstance(found, _Mirror):
            start = ctypes.addressof(found) - ctypes.addressof(self)  # type: ignore[arg-type]
            if 0 <= start < max(1, ctypes.sizeof(self)):  # type: ignore[arg-type]
                return _part(type(found), self._copy, self._offset + start)
        return found

    def _pull(self, start: int, size: int) -> bytes:
        """Read bytes of this object again, and return them."""
        start += self._offset
        self._copy.read(start, size)
        return bytes(self._copy.memory[start : start + size])

    def _refresh(self) -> bytes:
        return self._pull(0, ctypes.sizeof(self))  # type: ignore[arg-type]

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_"):
            return super().__getattribute__(name)
        self._refresh()
        return self._inner(super().__getattribute__(name))

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            object.__setattr__(self, name, value)
            return
        before = self._refresh()
        super().__setattr__(name, value)
        self._copy.write(self._offset, before)


class _ArrayMirror(_Mirror):
    _type_: Any
    _length_: int

    def _span(self, index: object) -> tuple[int, int]:
        """Return the first byte of an element or of adjacent ones, and the number of their bytes; for any other index
        those of the whole array."""
        size, chosen = ctypes.sizeof(self._type_), range(self._length_)
        if isinstance(index, int):
            chosen = chosen[index : index + 1 or None]
        elif isinstance(index, slice):
            chosen = chosen[index]
        return (chosen[0] * size, len(chosen) * size) if chosen and chosen.step == 1 else (0, self._length_ * size)

    def __getitem__(self, index: object) -> Any:
        self._pull(*self._span(index))
        found = super().__getitem__(index)  # type: ignore[misc]
        return [self._inner(one) for one in found] if isinstance(found, list) else self._inner(found)

    def __setitem__(self, index: object, value: object) -> None:
        start, size = self._span(index)
        before = self._pull(start, size)
        super().__setitem__(index, value)  # type: ignore[misc]
        self._copy.write(self._offset + start, before)

    def __iter__(self) -> Iterator[Any]:
        return iter(self[:])
