"""Conditions between processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

from dragon.infrastructure.generic import V
from dragon.native.lock import Lock, RLock
from dragon.runtime.handle import Condition as _Condition
from dragon.runtime.handle import node_of_memory

__all__ = ["Condition"]


class Condition(_Condition):
    """A condition variable: processes wait until another one notifies them. The methods are those of
    threading.Condition.

    Waiters are notified in the order in which they came. A waiter that was killed uses up no notification.

    Args:
        lock: the lock to use; None for a new RLock.
        m_uid: the memory that holds the condition, as in Lock.

    Examples:
        >>> from dragon.native import Condition, Process, Value
        >>> changed, value = Condition(), Value("i", 0)
        >>> def change():
        ...     with changed:
        ...         value.value = 1
        ...         changed.notify()
        >>> Process(change).start()
        >>> with changed:
        ...     changed.wait_for(lambda: value.value == 1, timeout=60)
        True
    """

    def __init__(self, lock: object = None, m_uid: object = None) -> None:
        self._make_on(node_of_memory(m_uid))
        self._set_state(lock if lock is not None else RLock(m_uid))

    def _state(self) -> object:
        return self._lock

    def _set_state(self, state: object) -> None:
        self._lock = lock = cast("Lock", state)
        self.acquire, self.release = lock.acquire, lock.release

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *exc_info: object) -> None:
        self._lock.__exit__(*exc_info)

    def _check(self) -> None:
        lock = self._lock
        if lock._count() == 0 or (lock._recursive() and not lock._is_mine()):
            raise AssertionError("must acquire() condition before using it")

    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock, wait for a notification, and acquire the lock again. Returns False after `timeout`
        seconds."""
        self._check()
        waiter = self._enter()
        held = self._lock._count()
        for _ in range(held):
            self._lock.release()
        try:
            self._sleep(waiter, timeout)
        finally:
            for _ in range(held):
                self._lock.acquire()
            notified = self._leave(waiter)
        return notified

    def wait_for(self, predicate: Callable[[], V], timeout: float | None = None) -> V:
        """Wait until `predicate()` is true, `timeout` seconds at most. Returns its last value."""
        end = None if timeout is None else time.monotonic() + timeout
        result = predicate()
        while not result:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                break
            self.wait(left)
            result = predicate()
        return result

    def notify(self, n: int = 1) -> None:
        """Notify `n` of the waiting processes."""
        self._check()
        self._notify(n)

    def notify_all(self) -> None:
        """Notify all waiting processes."""
        self.notify(2**32 - 1)
