"""An array in memory that processes share."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from typing import Any

from dragon.infrastructure.plain_number import plain_number
from dragon.native.value import Memory, Shared, ctype_of, lock_of

__all__ = ["Array"]


class Array(Shared):
    """A ctypes array of fixed length in shared memory, with indexing, slices and len().

    Args:
        typecode_or_type: the type of one element: a type code such as "d", or a ctypes type.
        size_or_initializer: a length (all elements are 0 then), or the elements.
        lock: True for a new lock, an existing lock, or False for none.
        m_uid: the memory that holds the array, as in Lock.

    Raises AttributeError for an invalid type or lock, ValueError for a negative length. An index outside of the array
    raises IndexError.

    Examples:
        >>> from dragon.native import Array
        >>> array = Array("d", [0.5, 1.5, 2.5])
        >>> array[1] = 3
        >>> array[:]
        [0.5, 3.0, 2.5]
    """

    def __init__(
        self,
        typecode_or_type: object,
        size_or_initializer: int | Iterable[Any],
        lock: object = True,
        m_uid: object = None,
    ) -> None:
        kind = ctype_of(typecode_or_type)
        size_or_initializer = plain_number(size_or_initializer)
        if isinstance(size_or_initializer, int):
            if size_or_initializer < 0:
                raise ValueError("an array's length must not be negative")
            values: list[Any] = []
            size = size_or_initializer
        else:
            values = list(size_or_initializer)
            size = len(values)
        self._memory = Memory(kind * size, m_uid)
        self._lock = lock_of(lock, m_uid)
        if values:
            self._memory.data[:] = bytes(values) if kind is ctypes.c_char and isinstance(values[0], int) else values

    def __len__(self) -> int:
        return len(self._memory.data)

    def __getitem__(self, index: object) -> Any:
        try:
            return self._memory.data[index]
        except IndexError:
            raise IndexError("list index out of range") from None

    def __setitem__(self, index: object, value: object) -> None:
        try:
            self._memory.data[index] = value
        except IndexError:
            raise IndexError("list index out of range") from None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._memory.data)

    @property
    def value(self) -> Any:
        """The text of an array of characters, up to the first NUL."""
        return self._memory.data.value

    @value.setter
    def value(self, value: object) -> None:
        self._memory.data.value = value

    @property
    def raw(self) -> Any:
        """All bytes of an array of characters."""
        return self._memory.data.raw

    @raw.setter
    def raw(self, value: object) -> None:
        self._memory.data.raw = value
