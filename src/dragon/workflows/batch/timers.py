"""The timers of a scheduler."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Container, Iterator

__all__ = ["Timers"]


class Timers:
    """Calls to be made later, and deadlines of tasks, by the numbers that are in `live`."""

    def __init__(self, live: Container[int]) -> None:
        self._live = live
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        # By number, so that a task that has ended, and its result, are not kept alive.
        self._deadlines: list[tuple[float, int]] = []
        self._looked_through = 64

    def call_after(self, seconds: float, call: Callable[[], None]) -> None:
        """Make the call due after `seconds`."""
        heapq.heappush(self._calls, (time.monotonic() + seconds, next(self._numbers), call))

    def end_after(self, seconds: float, number: int) -> None:
        """Set a task's deadline, in seconds from now."""
        heapq.heappush(self._deadlines, (time.monotonic() + seconds, number))
        if len(self._deadlines) > self._looked_through:
            self._deadlines = [one for one in self._deadlines if one[1] in self._live]
            heapq.heapify(self._deadlines)
            self._looked_through = 2 * len(self._deadlines) + 64

    def left(self) -> float | None:
        """Return the seconds until the next timer; None if there is none."""
        due = min((heap[0][0] for heap in (self._calls, self._deadlines) if heap), default=None)
        return None if due is None else max(0.0, due - time.monotonic())

    def due_calls(self, early: bool = False) -> Iterator[Callable[[], None]]:
        """Remove and yield the calls that are due, or all of them if `early`."""
        while self._calls and (early or self._calls[0][0] <= time.monotonic()):
            yield heapq.heappop(self._calls)[2]

    def overdue(self) -> Iterator[int]:
        """Remove and yield the tasks that have passed their deadline."""
        while self._deadlines and self._deadlines[0][0] <= time.monotonic():
            number = heapq.heappop(self._deadlines)[1]
            if number in self._live:
                yield number
