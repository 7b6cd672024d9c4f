"""Semaphores between processes."""

from __future__ import annotations

from typing import Self

from dragon.infrastructure.messages import SerializedName
from dragon.infrastructure.plain_number import plain_number
from dragon.runtime.handle import Semaphore as _Semaphore
from dragon.runtime.handle import node_of_memory, read_serialized, serialized

__all__ = ["BoundedSemaphore", "Semaphore"]

_MOST = 2**31 - 1


class Semaphore(_Semaphore):
    """A counter that acquire() decrements, waiting while it is 0, and release(n=1) increments.

    A bounded semaphore is never raised above its first value: ValueError. `m_uid` is the memory that holds the
    semaphore, as in Lock.

    Examples:
        >>> from dragon.native import Semaphore
        >>> places = Semaphore(2)
        >>> places.acquire(), places.acquire(), places.acquire(blocking=False)
        (True, True, False)
        >>> places.release()
    """

    def __init__(self, value: int = 1, *, m_uid: object = None, bounded: bool = False) -> None:
        value = plain_number(value)
        if not isinstance(value, int):
            raise TypeError(f"value must be a whole number, not {value!r}")
        if value < 0:
            raise ValueError("a semaphore's value must not be negative")
        self._make_on(node_of_memory(m_uid), value, value if bounded else _MOST)

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Decrement the counter. Returns False if it stayed 0 for `timeout` seconds."""
        return self._acquire(blocking, timeout)

    def get_value(self) -> int:
        """Return the counter's value."""
        return self._value()

    def destroy(self) -> None:
        """Destroy the semaphore for every process."""
        self._destroy()

    def serialize(self) -> str:
        """Return the semaphore's name, which attach() takes in any process of the run."""
        return serialized(*self._name())

    @classmethod
    def attach(cls, serialized: str) -> Self:
        """Return the semaphore that serialize() named.

        Raises DestroyedError if it does not exist any more, ValueError for text that serialize() did not write.
        """
        return cls._attached(read_serialized(serialized, SerializedName, "semaphore"))


class BoundedSemaphore(Semaphore):
    """A semaphore that is never raised above its first value.

    Examples:
        >>> from dragon.native import BoundedSemaphore
        >>> places = BoundedSemaphore(1)
        >>> places.release()
        Traceback (most recent call last):
        ValueError: ...
    """

    def __init__(self, value: int = 1, *, m_uid: object = None) -> None:
        super().__init__(value, m_uid=m_uid, bounded=True)
