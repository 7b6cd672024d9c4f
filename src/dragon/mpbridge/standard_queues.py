"""The standard library's own queues in a context of ours, as concurrent.futures makes them: over our pipes, which reach
processes on every node where descriptors stay on one.

Importing this module changes the two classes; what others make of them keeps what it has.
"""

from __future__ import annotations

from multiprocessing import connection, queues
from typing import Any

from dragon.mpbridge.synchronize import Lock
from dragon.runtime.connection import Pipe

__all__ = ["use_our_pipes"]


def _change_pipe(queue: Any) -> None:
    """Give a queue whose locks are ours a pipe of ours, as long as it has one of descriptors."""
    if isinstance(queue._rlock, Lock) and type(queue._reader) is connection.Connection:
        for end in (queue._reader, queue._writer):
            end.close()
        queue._reader, queue._writer = Pipe(duplex=False)


def use_our_pipes() -> None:
    """Have queues that are made from now on, and the one whose locks are being made, do so."""
    reset: Any = queues.Queue._reset  # type: ignore[attr-defined]
    initialise: Any = queues.SimpleQueue.__init__

    def _reset(self: Any, *args: Any, **kwargs: Any) -> None:
        _change_pipe(self)
        reset(self, *args, **kwargs)

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        initialise(self, *args, **kwargs)
        _change_pipe(self)
        self._poll = self._reader.poll

    queues.Queue._reset = _reset  # type: ignore[attr-defined]
    queues.SimpleQueue.__init__ = __init__  # type: ignore[method-assign]


use_our_pipes()
