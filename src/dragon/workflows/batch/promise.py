"""The future outcome of a task."""

from __future__ import annotations

import threading

from dragon.runtime.arguments import checked_seconds
from dragon.workflows.batch.outcome import Outcome

__all__ = ["Key", "Promise"]

Key = tuple[int, int]
"""The name of a task in its batch: the number of the client that submitted it, and its number within that client."""


class Promise:
    """The future outcome of one task. It is set once, by one thread."""

    __slots__ = ("__weakref__", "_set", "fetched", "key", "outcome")

    _lock = threading.Lock()

    def __init__(self, key: Key) -> None:
        self.key = key
        self.outcome: Outcome | None = None
        self.fetched = False  # whether get() has returned it in this process
        self._set: threading.Event | None = None

    def fulfil(self, outcome: Outcome, wake: bool = True) -> None:
        """Set the outcome; with `wake` notify the threads that wait for it."""
        with Promise._lock:
            self.outcome = outcome
            waited_for = self._set
        if waited_for is not None and wake:
            waited_for.set()

    def wait(self, timeout: float | None) -> bool:
        """Wait for the outcome. Returns whether there is one within `timeout` seconds."""
        timeout = checked_seconds("timeout", timeout)
        if self.outcome is not None:
            return True
        with Promise._lock:
            if self.outcome is not None:
                return True
            if self._set is None:
                self._set = threading.Event()
        # A lock accepts no longer timeout.
        return self._set.wait(None if timeout is None else min(timeout, threading.TIMEOUT_MAX))
