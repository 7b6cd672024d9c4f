"""multiprocessing's queues over channels: what is put is there at once, no thread feeds it."""

from __future__ import annotations

import multiprocessing.queues
import operator
import threading
from typing import Any

from dragon.runtime.connection import Connection
from dragon.runtime.handle import Channel
from dragon.runtime.run import identity

__all__ = ["DragonJoinableQueue", "DragonQueue", "DragonSimpleQueue", "JoinableQueue", "Queue", "SimpleQueue"]

# Programs, and logging.config, tell queues by the standard library's classes; all that those do is replaced.
mp_queues: Any = multiprocessing.queues


class _Queue(Channel):
    """A queue with the ends that multiprocessing's have, for those who wait on one or close one."""

    _ends: tuple[Connection, Connection] | None = None
    _left = 0, False  # how many objects were there when it was closed, and whether it was full

    @property
    def _reader(self) -> Connection:
        return self._both_ends()[0]

    @property
    def _writer(self) -> Connection:
        return self._both_ends()[1]

    def _both_ends(self) -> tuple[Connection, Connection]:
        if self._closed:
            return Connection(self, None), Connection(None, self)
        if self._ends is None:
            # Handles of their own: closing an end leaves the queue and the other end open.
            self._ends = (
                Connection(Channel._attached(self._name()), None),
                Connection(None, Channel._attached(self._name())),
            )
        return self._ends

    def empty(self) -> bool:
        """Whether there is nothing to get now. Raises OSError once it is closed."""
        if self._closed:
            raise OSError(f"{self!r} is closed")
        return super().empty()

    def close(self) -> None:
        """Leave the queue: this process can neither put nor get any more."""
        if not self._closed:
            self._left = self._size(), self._full()
        for end in self._ends or ():
            end.close()
        self._close()

    def qsize(self) -> int:
        """Objects in it now, or when it was closed here."""
        return self._left[0] if self._closed else self._size()

    def full(self) -> bool:
        """Whether put() would wait now, or would have when it was closed here."""
        return self._left[1] if self._closed else self._full()


class Queue(_Queue, mp_queues.Queue):  # type: ignore[misc]
    """multiprocessing.Queue. An object that cannot be pickled makes put() raise."""

    def __init__(self, maxsize: int = 0, *, ctx: Any = None) -> None:
        maxsize = operator.index(maxsize)
        super().__init__(max(maxsize, 0), maker=identity().puid)
        self._maxsize = maxsize

    def _state(self) -> Any:
        return self._maxsize

    def _set_state(self, state: Any) -> None:
        self._maxsize = state

    def join_thread(self) -> None:
        """Nothing to wait for: what was put is in the queue."""

    def cancel_join_thread(self) -> None:
        """Nothing to cancel: what was put is in the queue."""

    def fileno(self) -> int:
        """A descriptor that is readable while there is something to get, for connection.wait()."""
        return self._fileno()


class JoinableQueue(Queue, mp_queues.JoinableQueue):  # type: ignore[misc]
    """multiprocessing.JoinableQueue."""

    _tasks: Channel | None = None  # another handle, once this one is closed

    def close(self) -> None:
        """Leave the queue: this process can neither put nor get any more; task_done() and join() go on."""
        if not self._closed:
            self._tasks = Channel._attached(self._name())
        super().close()

    def task_done(self) -> None:
        """Say that an object that was taken is dealt with."""
        if not (self._tasks or self)._task_done():
            raise ValueError("task_done() called too many times")

    def join(self) -> None:
        """Wait until everything that was put is dealt with."""
        (self._tasks or self)._join(None)


class SimpleQueue(_Queue, mp_queues.SimpleQueue):  # type: ignore[misc]
    """multiprocessing.SimpleQueue."""

    def __init__(self, *, ctx: Any = None) -> None:
        super().__init__(maker=identity().puid)

    def put(self, obj: Any) -> None:  # type: ignore[override]
        """Put an object. Raises OSError once the queue is closed."""
        self._check()
        self._operations.put(self, obj)

    def get(self) -> Any:  # type: ignore[override]
        """Take the oldest object, waiting for one. Raises OSError once the queue is closed."""
        self._check()
        return self._operations.get(self)

    def _check(self) -> None:
        if self._closed:
            raise OSError("handle is closed")

    @property
    def _rlock(self) -> threading.Lock:
        """What multiprocessing.pool holds while it empties the queue; getting from this one takes no lock."""
        return threading.Lock()


# As programs know them from dragonhpc.
DragonJoinableQueue = JoinableQueue
DragonQueue = Queue
DragonSimpleQueue = SimpleQueue
