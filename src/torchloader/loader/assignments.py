"""Decides which worker makes which batch, so that none is lost or given twice when workers leave or die. Starts no
process."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from typing import Generic, TypeVar

from torchloader.loader.streams import Progress

__all__ = ["Assignments", "Key"]

# Of a batch: which iteration over the loader, and which batch of it.
Key = tuple[int, int]
Task = TypeVar("Task")


class Assignments(Generic[Task]):
    """Pending batches and the workers that make them, each with at most `prefetch` batches at a time.

    A worker makes its batches in the order in which it received them.
    """

    is_plain = True  # batches depend on no others

    def __init__(self, prefetch: int) -> None:
        self.prefetch = prefetch
        self.expected = 0  # workers that take batches, or will soon
        self._wanted: dict[Key, Task] = {}
        self._waiting: list[Key] = []  # a heap: older batches first, also those that come back
        self._held: dict[int, dict[Key, None]] = {}
        self._leaving: dict[int, dict[Key, None]] = {}
        self._deaths: Counter[Key] = Counter()

    @property
    def workers(self) -> int:
        """The number of workers that take batches."""
        return len(self._held)

    def window(self, workers: int = 0) -> int:
        """Return how many batches may be requested before the first of them is taken; `workers` is the number that is
        expected."""
        return self.prefetch * max(1, workers, self.workers)

    def is_here(self, key: Key) -> bool:
        """Return whether only the trainer may make this batch."""
        return False

    def want(self, key: Key, task: Task) -> None:
        """Add a batch that is to be made."""
        self._wanted[key] = task
        heapq.heappush(self._waiting, key)

    def task(self, key: Key) -> Task | None:
        """Return the task of a batch; None if it is already made or no longer wanted."""
        return self._wanted.get(key)

    def join(self, worker: int) -> None:
        """Let a worker take batches from now on."""
        self._held[worker] = {}

    def leave(self, worker: int) -> None:
        """Let a worker finish the batch that it is making, and return its other batches to the queue."""
        held = self._held.pop(worker, {})
        in_hand = next(iter(held), None)
        self._leaving[worker] = {} if in_hand is None else {in_hand: None}
        self._return(key for key in held if key != in_hand)

    def gone(self, worker: int, died: bool, most: int = 3) -> Key | None:
        """Return an ended worker's batches to the queue.

        If it died, and its current batch has ended `most` workers, return that batch's key; otherwise None.
        """
        held = self._held.pop(worker, None)
        if held is None:
            held = self._leaving.pop(worker, {})
        self._return(held)
        in_hand = next((key for key in held if key in self._wanted), None)
        if not died or in_hand is None:
            return None
        self._deaths[in_hand] += 1
        return in_hand if self._deaths[in_hand] >= most else None

    def made(self, worker: int, key: Key, progress: Progress | None = None) -> bool:
        """Note that a worker has made a batch, and the progress of its stream. Return whether the batch is still wanted
        and was not made before."""
        for workers in (self._held, self._leaving):
            if worker in workers:
                workers[worker].pop(key, None)
        self._deaths.pop(key, None)
        return self._wanted.pop(key, None) is not None

    def drop(self, iteration: int) -> None:
        """Discard all batches of an iteration."""
        for key in [key for key in self._wanted if key[0] == iteration]:
            del self._wanted[key]
            self._deaths.pop(key, None)
        # Its worker passes over a batch that it has not begun, without a word.
        for held in (*self._held.values(), *self._leaving.values()):
            for key in [key for key in held if key[0] == iteration]:
                del held[key]

    def hand_out(self) -> Iterator[tuple[int, Key, Task]]:
        """Yield (worker, key, task) for each batch to send now: the oldest batch to the worker with the fewest."""
        while self._waiting and self._held:
            if self._waiting[0] not in self._wanted:
                heapq.heappop(self._waiting)
                continue
            worker = min(self._held, key=lambda each: (len(self._held[each]), each))
            if len(self._held[worker]) >= self.prefetch:
                return
            key = heapq.heappop(self._waiting)
            self._held[worker][key] = None
            yield worker, key, self._wanted[key]

    def started(self, worker: int, task: Task) -> Task:
        """Return the task in the form in which it is sent to the worker."""
        return task

    def released(self) -> list[tuple[int, tuple[int, int]]]:
        """Return (worker, (iteration, stream)) for each stream that another worker took over since the last call."""
        return []

    def _return(self, keys: Iterator[Key] | dict[Key, None]) -> None:
        for key in keys:
            if key in self._wanted:
                heapq.heappush(self._waiting, key)
