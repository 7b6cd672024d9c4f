"""A lock of the threads of one process."""

from __future__ import annotations

import threading
import weakref

from dragon.runtime.fork_hooks import in_child

__all__ = ["ProcessLock"]


class ProcessLock:
    """A reentrant lock of this process's threads. A child that is forked has another one, which is free, whichever
    thread of its parent held the parent's at that time: that thread is not there to release it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _all.add(self)

    def renew(self) -> None:
        """Be free, in a child."""
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
