"""A lock between the threads of one process, which is free in a forked child."""

from __future__ import annotations

import threading
import weakref

from dragon.runtime.fork_hooks import in_child


class ProcessLock:
    """A reentrant lock between this process's threads. A forked child has a new one, which is free: the thread that
    held the parent's does not exist in the child to release it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _all.add(self)

    def renew(self) -> None:
        """Replace the lock by a free one, in a child."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.release()


_all: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in list(_all):
        lock.renew()


in_child(_renew_all)
