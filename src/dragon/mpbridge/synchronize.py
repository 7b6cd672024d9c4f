"""multiprocessing's locks, semaphores, conditions, events and barriers for the start method "dragon"."""

from __future__ import annotations

import multiprocessing.synchronize
import os
import threading
from collections.abc import Callable
from multiprocessing import connection, queues
from multiprocessing import process as mp_process
from typing import Any

from dragon.native import barrier, condition
from dragon.runtime import handle
from dragon.runtime.connection import Pipe
from dragon.runtime.handle import node_for_objects

_MOST = 2**31 - 1

# Programs recognize these by the standard library's classes; all their methods are replaced.
mp_synchronize: Any = multiprocessing.synchronize


class _Held:
    """The state of a lock, and the text that names its holder, as multiprocessing's locks have them."""

    def locked(self) -> bool:
        """Return whether the lock is held at the moment."""
        return bool(self._count())  # type: ignore[attr-defined]

    def _holder(self) -> str:
        owner = self._owner_pid()  # type: ignore[attr-defined]
        if not self._count():  # type: ignore[attr-defined]
            return "None"
        if not self._is_mine():  # type: ignore[attr-defined]
            return "SomeOtherThread" if owner == os.getpid() else "SomeOtherProcess"
        name = mp_process.current_process().name
        thread = threading.current_thread()
        return name if thread is threading.main_thread() else f"{name}|{thread.name}"


class Lock(_Held, handle.Lock, mp_synchronize.Lock):  # type: ignore[misc]
    """multiprocessing.Lock."""

    def __init__(self, *, ctx: object = None) -> None:
        self._make_on(node_for_objects(), False)

    def __repr__(self) -> str:
        return f"<Lock(owner={self._holder()})>"


class RLock(_Held, handle.Lock, mp_synchronize.RLock):  # type: ignore[misc]
    """multiprocessing.RLock."""

    def __init__(self, *, ctx: object = None) -> None:
        self._make_on(node_for_objects(), True)

    def __repr__(self) -> str:
        count = self._count() if self._is_mine() else ("nonzero" if self._count() else 0)
        return f"<RLock({self._holder()}, {count})>"


class Semaphore(handle.Semaphore, mp_synchronize.Semaphore):  # type: ignore[misc]
    """multiprocessing.Semaphore."""

    def __init__(self, value: int = 1, *, ctx: object = None) -> None:
        if value < 0:
            raise ValueError("semaphore initial value must be >= 0")
        self._make_on(node_for_objects(), value, self._bound(value))

    @staticmethod
    def _bound(value: int) -> int:
        return _MOST

    def get_value(self) -> int:
        """Return the counter's value."""
        return self._value()

    def locked(self) -> bool:
        """Return whether the counter is 0, so that acquire() would wait."""
        return self._is_zero()

    # multiprocessing.queues.Queue, which concurrent.futures makes with our context, uses these.

    @property
    def _semlock(self) -> Semaphore:
        return self

    def _get_value(self) -> int:
        return self._value()

    def _is_zero(self) -> bool:
        return self._value() == 0

    def __repr__(self) -> str:
        return f"<{type(self).__name__}(value={self._value()})>"


class BoundedSemaphore(Semaphore, mp_synchronize.BoundedSemaphore):  # type: ignore[misc]
    """multiprocessing.BoundedSemaphore."""

    @staticmethod
    def _bound(value: int) -> int:
        return value


class Condition(condition.Condition, mp_synchronize.Condition):  # type: ignore[misc]
    """multiprocessing.Condition."""

    def __init__(self, lock: object = None, *, ctx: object = None) -> None:
        super().__init__(lock if lock is not None else RLock())

    def __repr__(self) -> str:
        return f"<Condition({self._lock})>"


class Event(handle.Event, mp_synchronize.Event):  # type: ignore[misc]
    """multiprocessing.Event."""

    def __init__(self, *, ctx: object = None) -> None:
        self._make_on(node_for_objects())

    def __repr__(self) -> str:
        return f"<Event at {id(self):#x} {'set' if self.is_set() else 'unset'}>"


class Barrier(barrier.Barrier, mp_synchronize.Barrier):  # type: ignore[misc]
    """multiprocessing.Barrier."""

    _fewest = 1

    def __init__(
        self, parties: int, action: Callable[[], Any] | None = None, timeout: float | None = None, *, ctx: object = None
    ) -> None:
        super().__init__(parties, action, timeout)


BrokenBarrierError = threading.BrokenBarrierError

# dragonhpc's names.
DragonBarrier = Barrier
DragonBoundedSemaphore = BoundedSemaphore
DragonCondition = Condition
DragonEvent = Event
DragonLock = Lock
DragonRLock = RLock
DragonSemaphore = Semaphore


# concurrent.futures makes queues of the standard library in a "dragon" context. Their pipes of file descriptors stay on
# one node, those of the run reach processes on every node. Subclasses of other packages keep their methods.


def _change_pipe(queue: Any) -> None:
    """Replace the pipe of a queue whose locks are of the run by one of the run, if it has one of file descriptors."""
    if isinstance(queue._rlock, Lock) and type(queue._reader) is connection.Connection:
        for end in (queue._reader, queue._writer):
            end.close()
        queue._reader, queue._writer = Pipe(duplex=False)


def use_our_pipes() -> None:
    """Change the queue classes, for later queues and the one whose locks are being made now."""
    reset: Callable[..., None] = queues.Queue._reset  # type: ignore[attr-defined]
    initialise: Callable[..., None] = queues.SimpleQueue.__init__

    def _reset(self: object, *args: object, **kwargs: object) -> None:
        _change_pipe(self)
        reset(self, *args, **kwargs)

    def __init__(self: Any, *args: object, **kwargs: object) -> None:
        initialise(self, *args, **kwargs)
        _change_pipe(self)
        self._poll = self._reader.poll

    queues.Queue._reset = _reset  # type: ignore[attr-defined]
    queues.SimpleQueue.__init__ = __init__  # type: ignore[method-assign]


use_our_pipes()
