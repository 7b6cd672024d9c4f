"""Makes the standard library's own queues, as concurrent.futures makes them in a "dragon" context, use pipes of the
run.

Such pipes reach processes on every node; file descriptors stay on one. Importing this module changes the two classes;
subclasses of other packages keep their methods.
"""

from __future__ import annotations

from multiprocessing import connection, queues
from typing import Any

from dragon.mpbridge.synchronize import Lock
from dragon.runtime.connection import Pipe


def _change_pipe(queue: Any) -> None:
    """Replace the pipe of a queue whose locks are of the run by one of the run, if it has one of file descriptors."""
    if isinstance(queue._rlock, Lock) and type(queue._reader) is connection.Connection:
        for end in (queue._reader, queue._writer):
            end.close()
        queue._reader, queue._writer = Pipe(duplex=False)


def use_our_pipes() -> None:
    """Change the queue classes, for later queues and the one whose locks are being made now."""
    reset: Any = queues.Queue._reset  # type: ignore[attr-defined]
    initialise: Any = queues.SimpleQueue.__init__

    def _reset(self: object, *args: object, **kwargs: object) -> None:
        _change_pipe(self)
        reset(self, *args, **kwargs)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        initialise(self, *args, **kwargs)
        _change_pipe(self)
        self._poll = self._reader.poll

    queues.Queue._reset = _reset  # type: ignore[attr-defined]
    queues.SimpleQueue.__init__ = __init__  # type: ignore[method-assign]


use_our_pipes()
