"""Calls functions in a child right after a fork.

One system hook serves all functions. It is registered before a main program is imported: a later hook is taken for one
of the program's, with which the zygote must not be forked.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

_calls: list[Callable[[], object]] = []


def in_child(call: Callable[[], object]) -> None:
    """Call a function in every child that is forked from now on, and in their children."""
    _calls.append(call)


def _call_all() -> None:
    for call in _calls:
        call()


os.register_at_fork(after_in_child=_call_all)


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
