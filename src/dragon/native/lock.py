"""Locks between processes."""

from __future__ import annotations

from typing import Any

from dragon.runtime.handle import Lock as _Lock
from dragon.runtime.nodes import node_of_memory

__all__ = ["Lock", "RLock"]


class Lock(_Lock):
    """A lock: acquire(block=True, timeout=None) says if it was had, release() raises ValueError if nobody holds it.

    It lies in the memory `m_uid`, that of a node (facts.default_pool_muid_from_index()), or of its maker's. Raises
    ValueError where there is no such memory.

    If the process that holds it dies, the next acquire() has it, with a RuntimeWarning. A recursive lock may be
    acquired again by the thread that holds it, and released by no other (AssertionError).

    Examples:
        >>> from dragon.native import Lock
        >>> lock = Lock()
        >>> with lock:
        ...     lock.acquire(timeout=0.01)
        False
    """

    def __init__(self, m_uid: Any = None, recursive: bool = False) -> None:
        self._make_on(node_of_memory(m_uid), recursive)

    def is_recursive(self) -> bool:
        """Whether its holder may acquire it again."""
        return self._recursive()

    def is_mine(self) -> bool:
        """Whether the calling thread holds it (of a recursive lock), or this process may release it."""
        return self._is_mine()

    def count(self) -> int:
        """How many times it is acquired now."""
        return self._count()

    def destroy(self) -> None:
        """End the lock for every process."""
        self._destroy()


class RLock(Lock):
    """A recursive lock.

    Examples:
        >>> from dragon.native import RLock
        >>> lock = RLock()
        >>> with lock, lock:
        ...     lock.count()
        2
    """

    def __init__(self, m_uid: Any = None) -> None:
        super().__init__(m_uid, recursive=True)
