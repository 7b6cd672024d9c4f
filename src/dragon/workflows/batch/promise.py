"""The future outcome of a task."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dragon.runtime.arguments import checked_seconds
from dragon.workflows.batch.outcome import Outcome

Key = tuple[int, int]
"""The name of a task in its batch: the number of the client that submitted it, and its number within that client."""


class Promise:
    """The future outcome of one task. It is set once, by one thread."""

    __slots__ = ("__weakref__", "_listeners", "fetched", "key", "outcome")

    _lock = threading.Lock()

    def __init__(self, key: Key) -> None:
        self.key = key
        self.outcome: Outcome | None = None
        self.fetched = False  # whether get() has returned it in this process
        self._listeners: tuple[Callable[[], object], ...] = ()

    def fulfil(self, outcome: Outcome, wake: bool = True) -> None:
        """Set the outcome; with `wake` call the listeners, in this thread."""
        with Promise._lock:
            self.outcome = outcome
            listeners, self._listeners = self._listeners, ()
        if wake:
            for listener in listeners:
                listener()

    def listen(self, listener: Callable[[], object]) -> None:
        """Have a function called once, when the outcome is set, or at once if it is. It must not block or raise."""
        with Promise._lock:
            if self.outcome is None:
                self._listeners += (listener,)
                return
        listener()

    def unlisten(self, listener: Callable[[], object]) -> None:
        """Have a function no longer called."""
        with Promise._lock:
            self._listeners = tuple(each for each in self._listeners if each != listener)

    def wait(self, timeout: float | None) -> bool:
        """Wait for the outcome. Returns whether there is one within `timeout` seconds."""
        timeout = checked_seconds("timeout", timeout)
        if self.outcome is not None:
            return True
        is_set = threading.Event()
        self.listen(is_set.set)
        try:
            # A lock accepts no longer timeout.
            return is_set.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))
        finally:
            self.unlisten(is_set.set)
