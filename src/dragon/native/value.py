"""A value in memory that processes share."""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Iterator
from multiprocessing.sharedctypes import typecode_to_type  # type: ignore[attr-defined]
from typing import Any, Protocol, TypeVar, cast

from dragon.native.lock import RLock
from dragon.runtime.copies import Copy
from dragon.runtime.handle import Words, node_of_memory
from dragon.runtime.remote import RemoteWords

__all__ = ["Value"]

_MOST = 2**32 - 1  # words
_COMPOUND = (ctypes.Structure, ctypes.Union, ctypes.Array)
T = TypeVar("T")


class _Lock(Protocol):
    def acquire(self, block: bool = True, timeout: float | None = None, /) -> bool: ...
    def release(self) -> object: ...


def words_for(kind: type[ctypes._CDataType], m_uid: object = None) -> Words:
    """Allocate memory for an object of that ctypes type, on the node of `m_uid` or this one. Raises MemoryError."""
    count = max(1, -(-ctypes.sizeof(kind) // 8))
    if count > _MOST:
        raise MemoryError(f"{ctypes.sizeof(kind)} bytes are more than the {_MOST * 8} that one shared object can have")
    return Words._on(node_of_memory(m_uid), count)


def in_words(kind: type[ctypes._CDataType], words: Words) -> Any:
    """Return the object of that ctypes type that the words hold."""
    if not isinstance(words, RemoteWords):
        return kind.from_buffer(words)
    return mirror_of(kind, words)


def mirror_of(kind: type[ctypes._CDataType], words: RemoteWords) -> _Mirror:
    """Return the mirror of an object of that ctypes type in words of another node."""
    mirror = _part(kind, Copy(words, ctypes.sizeof(kind), _grain(kind)), 0)
    mirror._refresh()
    return mirror


def with_views(obj: T) -> T:
    """Return the object, of which the program may have views from now on, such as NumPy's."""
    if isinstance(obj, _Mirror):
        obj._copy.have_views()
    return obj


def _grain(kind: Any) -> int:
    """Return the size of an array's elements, in bytes; 1 if they have parts."""
    while issubclass(kind, ctypes.Array):
        kind = kind._type_
    return 1 if issubclass(kind, _COMPOUND) else ctypes.sizeof(kind)


def kind_of(obj: object) -> type[Any]:
    """Return the ctypes type of such an object."""
    kind = type(obj)
    return kind.__bases__[1] if issubclass(kind, _Mirror) else kind


@functools.cache
def _mirror(kind: Any) -> type[Any]:
    bases = (_ArrayMirror, kind) if issubclass(kind, ctypes.Array) else (_Mirror, kind)
    made: type[Any] = type(kind)(kind.__name__, bases, {"_copy": None, "__module__": kind.__module__})
    return made


def _part(kind: object, copy: Copy, offset: int) -> _Mirror:
    """Return the mirror of the object at `offset` bytes in the words of that copy."""
    mirror: _Mirror = _mirror(kind).from_buffer(copy.memory, offset)
    mirror._copy, mirror._offset = copy, offset
    return mirror


# A mirror is an object of the same type as one in words of another node. It reads them at each access, and writes back
# the bytes that an assignment changed. Each structure or array within it is a mirror of its part.


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

    def __getattribute__(self, name: str) -> object:
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
    _type_: type[ctypes._CDataType]
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


_BASES: dict[str, Any] = {"structure": ctypes.Structure, "union": ctypes.Union}


def described(kind: Any) -> object:
    """Return plain values that describe an array type, or a type made by a function or a main program; else the type
    itself."""
    if issubclass(kind, ctypes.Array):
        return "array", described(kind._type_), kind._length_
    for what, base in _BASES.items():
        if issubclass(kind, base) and (
            "<locals>" in kind.__qualname__ or kind.__module__ in ("__main__", "__mp_main__")
        ):
            fields = [(name, described(of), *bits) for name, of, *bits in kind._fields_]
            return what, kind.__name__, fields, getattr(kind, "_pack_", None)
    return kind


def undescribed(told: object) -> Any:
    """Return the type that described() described."""
    if not isinstance(told, tuple):
        return told
    what, *rest = told
    if what == "array":
        return undescribed(rest[0]) * rest[1]
    name, fields, pack = rest
    own = getattr(sys.modules["__main__"], name, None)
    if isinstance(own, type) and issubclass(own, _BASES[what]) and described(own) == told:
        return own
    members = {} if pack is None else {"_pack_": pack}
    members["_fields_"] = [(field, undescribed(of), *bits) for field, of, *bits in fields]
    return type(_BASES[what])(name, (_BASES[what],), members)


def ctype_of(typecode_or_type: object) -> type[Any]:
    """Return the ctypes type of a type code or type. Raises AttributeError for anything else."""
    kind = typecode_to_type.get(typecode_or_type, typecode_or_type)
    if not isinstance(kind, type) or not hasattr(kind, "from_buffer"):
        raise AttributeError(f"{typecode_or_type!r} is no type code and no ctypes type")
    return kind


def lock_of(lock: object, m_uid: object = None) -> _Lock | None:
    """Return the lock that an argument `lock` means: a new one for True or None, None for False, else itself.

    Raises AttributeError for an object that is not a lock.
    """
    if lock in (True, None):
        return RLock(m_uid)
    if lock is False:
        return None
    if not hasattr(lock, "acquire"):
        raise AttributeError(f"{lock!r} has no method 'acquire'")
    return cast("_Lock", lock)


class Memory:
    """A ctypes object in shared memory. Other processes get its name instead of a copy."""

    def __init__(self, kind: type[Any], m_uid: object = None) -> None:
        self.__setstate__((kind, words_for(kind, m_uid)))

    def fill(self, obj: Any) -> None:
        """Copy a ctypes object of the same type into the memory."""
        if isinstance(self._words, RemoteWords):
            self._words._write(0, bytes(obj))
        else:
            ctypes.memmove(ctypes.addressof(self.data), ctypes.addressof(obj), ctypes.sizeof(obj))

    def __getstate__(self) -> tuple[object, Words]:
        return described(self._kind), self._words

    def __setstate__(self, state: tuple[object, Words]) -> None:
        kind, self._words = state
        self._kind = undescribed(kind)
        self.data: Any = in_words(self._kind, self._words)


class Shared:
    """A ctypes object in shared memory, and its lock."""

    _memory: Memory
    _lock: _Lock | None

    def get_lock(self) -> Any:
        """Return the lock; None if the object has no lock."""
        return self._lock

    def get_obj(self) -> Any:
        """Return the ctypes object."""
        return with_views(self._memory.data)

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Acquire the lock. Returns False after `timeout` seconds; raises AttributeError if the object has no lock."""
        return self._its_lock().acquire(block, timeout)

    def release(self) -> None:
        """Release the lock. Raises AttributeError if the object has no lock."""
        self._its_lock().release()

    def _its_lock(self) -> _Lock:
        if self._lock is None:
            raise AttributeError(f"this {type(self).__name__} was made without a lock: lock=True gives it one")
        return self._lock

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self.release()


class Value(Shared):
    """One ctypes value in shared memory; `value` reads and writes it, and structures have their fields.

    Args:
        typecode_or_type: a type code such as "i", or a ctypes type.
        value: the first value; None for zeros.
        lock: True for a new lock, an existing lock, or False for none. acquire(), release(), get_lock() and `with` use
            it.
        m_uid: the memory that holds the value, as in Lock.

    Examples:
        >>> from dragon.native import Value
        >>> count = Value("i", 5, lock=True)
        >>> with count:
        ...     count.value += 1
        >>> count.value
        6
    """

    _SUPPORTED_TYPES = typecode_to_type

    def __init__(
        self, typecode_or_type: object, value: object = None, lock: object = False, m_uid: object = None
    ) -> None:
        kind = ctype_of(typecode_or_type)
        self._memory = Memory(kind, m_uid)
        self._lock = lock_of(lock, m_uid)
        if value is not None:
            self._memory.fill(_made(kind, value))

    @property
    def value(self) -> Any:
        """The value; for a structure or an array, the ctypes object, whose parts can be set."""
        data = self._memory.data
        return data.value if hasattr(data, "value") else data

    @value.setter
    def value(self, value: object) -> None:
        data = self._memory.data
        if hasattr(data, "value"):
            data.value = value
        else:
            self._memory.fill(_made(type(data), value))

    def __getitem__(self, index: object) -> Any:
        return self._memory.data[index]

    def __setitem__(self, index: object, value: object) -> None:
        self._memory.data[index] = value

    def __len__(self) -> int:
        return len(self._memory.data)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._memory.data, name)

    def __setattr__(self, name: str, value: object) -> None:
        if name.startswith("_") or name == "value":
            object.__setattr__(self, name, value)
        else:
            setattr(self._memory.data, name, value)

    def __repr__(self) -> str:
        return f"<Value {self._memory.data!r}>"


def _made(kind: type[Any], value: object) -> object:
    """Return a ctypes object of a type, made from such an object, from a sequence of its parts, or from a plain
    value."""
    if isinstance(value, kind):
        return value
    return kind(*value) if isinstance(value, (tuple, list)) else kind(value)
