"""multiprocessing's queues over channels: an object that was put can be got at once, no thread feeds it."""

from __future__ import annotations

import multiprocessing.queues
import operator
import threading
from typing import Any, cast

from dragon.runtime.connection import PIPE_MEBIBYTES, Connection
from dragon.runtime.handle import Channel, node_for_objects
from dragon.runtime.run import identity

# Programs, and logging.config, recognize queues by the standard library's classes; all their methods are replaced.
mp_queues: Any = multiprocessing.queues


class _Queue(Channel):
    """A queue with the two connections of multiprocessing's queues, for programs that wait on one or close one."""

    _ends: tuple[Connection, Connection] | None = None
    _left = 0, False  # the number of objects when it was closed, and whether it was full

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
            # Separate handles: closing an end leaves the queue and the other end open.
            self._ends = (
                Connection(Channel._attached(self._name()), None),
                Connection(None, Channel._attached(self._name())),
            )
        return self._ends

    def empty(self) -> bool:
        """Return whether there is nothing to get at the moment. Raises OSError once the queue is closed."""
        if self._closed:
            raise OSError(f"{self!r} is closed")
        return super().empty()

    def close(self) -> None:
        """Close the queue in this process, which can neither put nor get any more."""
        if not self._closed:
            self._left = self._size(), self._full()
        for end in self._ends or ():
            end.close()
        self._close()

    def qsize(self) -> int:
        """Return the number of objects in the queue, or when it was closed in this process."""
        return self._left[0] if self._closed else self._size()

    def full(self) -> bool:
        """Return whether put() would wait at the moment, or when the queue was closed in this process."""
        return self._left[1] if self._closed else self._full()


class Queue(_Queue, mp_queues.Queue):  # type: ignore[misc]
    """multiprocessing.Queue. put() raises for an object that cannot be pickled."""

    def __init__(self, maxsize: int = 0, *, ctx: object = None) -> None:
        maxsize = operator.index(maxsize)
        self._make_on(node_for_objects(), max(maxsize, 0), maker=identity().puid)
        self._maxsize = maxsize

    def _state(self) -> object:
        return self._maxsize

    def _set_state(self, state: object) -> None:
        self._maxsize = cast("int", state)

    def join_thread(self) -> None:
        """Do nothing: there is no thread, objects are in the queue once put() has returned."""

    def cancel_join_thread(self) -> None:
        """Do nothing: there is no thread, objects are in the queue once put() has returned."""

    def fileno(self) -> int:
        """Return a file descriptor that is readable while there is an object to get, for connection.wait()."""
        return self._fileno()


class JoinableQueue(Queue, mp_queues.JoinableQueue):  # type: ignore[misc]
    """multiprocessing.JoinableQueue."""

    _tasks: Channel | None = None  # another handle, which is used once this one is closed

    def close(self) -> None:
        """Close the queue in this process, which can neither put nor get any more; task_done() and join() still
        work."""
        if not self._closed:
            self._tasks = Channel._attached(self._name())
        super().close()

    def task_done(self) -> None:
        """Report that an object that was taken is processed. Raises ValueError when called too often."""
        if not (self._tasks or self)._task_done():
            raise ValueError("task_done() called too many times")

    def join(self) -> None:
        """Wait until task_done() was called for every object that was put."""
        (self._tasks or self)._join(None)


class SimpleQueue(_Queue, mp_queues.SimpleQueue):  # type: ignore[misc]
    """multiprocessing.SimpleQueue, which is a pipe with locks there: a put waits where that of a pipe does."""

    def __init__(self, *, ctx: object = None) -> None:
        self._make_on(node_for_objects(), maker=identity().puid, mebibytes=PIPE_MEBIBYTES)

    def put(self, obj: object) -> None:  # type: ignore[override]
        """Put an object, after waiting while 4 MiB are in the queue. Raises OSError once the queue is closed."""
        self._check()
        self._operations.put(self, obj)

    def get(self) -> object:  # type: ignore[override]
        """Wait for an object and take the oldest one. Raises OSError once the queue is closed."""
        self._check()
        return self._operations.get(self)

    def _check(self) -> None:
        if self._closed:
            raise OSError("handle is closed")

    @property
    def _rlock(self) -> threading.Lock:
        """A lock that multiprocessing.pool holds while it empties the queue; this queue itself needs none."""
        return threading.Lock()


# dragonhpc's names.
DragonJoinableQueue = JoinableQueue
DragonQueue = Queue
DragonSimpleQueue = SimpleQueue
