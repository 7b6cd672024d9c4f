"""Locks between processes."""

from __future__ import annotations

from dragon.runtime.handle import Lock as _Lock
from dragon.runtime.handle import node_of_memory

__all__ = ["Lock", "RLock"]


class Lock(_Lock):
    """A lock between processes.

    acquire(block=True, timeout=None) returns whether the lock was acquired; release() raises ValueError if it is not
    held. If the process that holds the lock dies, the next acquire() gets it, with a RuntimeWarning.

    Args:
        m_uid: the memory of the node that holds the lock (facts.default_pool_muid_from_index()); None for the node
            that a `with` block of a policy names, or else the creator's. Raises ValueError for a memory that does not
            exist.
        recursive: whether the thread that holds the lock may acquire it again. Another thread that releases it gets an
            AssertionError.

    Examples:
        >>> from dragon.native import Lock
        >>> lock = Lock()
        >>> with lock:
        ...     lock.acquire(timeout=0.01)
        False
    """

    def __init__(self, m_uid: object = None, recursive: bool = False) -> None:
        self._make_on(node_of_memory(m_uid), recursive)

    def is_recursive(self) -> bool:
        """Return whether the thread that holds the lock may acquire it again."""
        return self._recursive()

    def is_mine(self) -> bool:
        """Return whether the calling thread holds the lock (if recursive), or whether this process may release it."""
        return self._is_mine()

    def count(self) -> int:
        """Return how many times the lock is acquired at the moment."""
        return self._count()

    def destroy(self) -> None:
        """Destroy the lock for every process."""
        self._destroy()


class RLock(Lock):
    """A recursive lock. `m_uid` is as in Lock.

    Examples:
        >>> from dragon.native import RLock
        >>> lock = RLock()
        >>> with lock, lock:
        ...     lock.count()
        2
    """

    def __init__(self, m_uid: object = None) -> None:
        super().__init__(m_uid, recursive=True)
