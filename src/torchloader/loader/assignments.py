"""Which worker makes which batch: nothing is lost when one leaves or dies, nothing is given twice. No process here."""

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
    """Batches that are wanted, and the workers that make them, each at most `prefetch` at a time.

    A worker makes its batches in the order in which it got them.
    """

    is_plain = True  # batches depend on no others

    def __init__(self, prefetch: int) -> None:
        self.prefetch = prefetch
        self._wanted: dict[Key, Task] = {}
        self._waiting: list[Key] = []  # a heap: older batches first, also those that come back
        self._held: dict[int, dict[Key, None]] = {}
        self._leaving: dict[int, dict[Key, None]] = {}
        self._deaths: Counter[Key] = Counter()

    @property
    def workers(self) -> int:
        """Workers that take batches."""
        return len(self._held)

    def window(self, workers: int = 0) -> int:
        """Batches that may be asked for before the first of them is taken, where so many workers are coming."""
        return self.prefetch * max(1, workers, self.workers)

    def is_here(self, key: Key) -> bool:
        """Whether only the trainer makes it."""
        return False

    def want(self, key: Key, task: Task) -> None:
        """A batch is to be made."""
        self._wanted[key] = task
        heapq.heappush(self._waiting, key)

    def task(self, key: Key) -> Task | None:
        """How it is made, None where it is made already or nobody wants it."""
        return self._wanted.get(key)

    def join(self, worker: int) -> None:
        """A worker takes batches from now on."""
        self._held[worker] = {}

    def leave(self, worker: int) -> None:
        """A worker finishes the batch in hand; others get the rest."""
        held = self._held.pop(worker, {})
        in_hand = next(iter(held), None)
        self._leaving[worker] = {} if in_hand is None else {in_hand: None}
        self._return(key for key in held if key != in_hand)

    def gone(self, worker: int, died: bool) -> Key | None:
        """A worker has ended; others get what it had. The batch that it died over three times or more, if it did."""
        held = self._held.pop(worker, None)
        if held is None:
            held = self._leaving.pop(worker, {})
        self._return(held)
        in_hand = next((key for key in held if key in self._wanted), None)
        if not died or in_hand is None:
            return None
        self._deaths[in_hand] += 1
        return in_hand if self._deaths[in_hand] >= 3 else None

    def made(self, worker: int, key: Key, progress: Progress | None = None) -> bool:
        """A worker has made a batch, with which its stream has got so far. Whether it is the first one to, and somebody
        still wants it."""
        for workers in (self._held, self._leaving):
            if worker in workers:
                workers[worker].pop(key, None)
        self._deaths.pop(key, None)
        return self._wanted.pop(key, None) is not None

    def drop(self, iteration: int) -> None:
        """Nobody wants the batches of an iteration any more."""
        for key in [key for key in self._wanted if key[0] == iteration]:
            del self._wanted[key]
            self._deaths.pop(key, None)
        # Its worker passes over a batch that it has not begun, without a word.
        for held in (*self._held.values(), *self._leaving.values()):
            for key in [key for key in held if key[0] == iteration]:
                del held[key]

    def hand_out(self) -> Iterator[tuple[int, Key, Task]]:
        """Batches that workers are to get now: the oldest to who has the fewest."""
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
        """The task as a worker gets it."""
        return task

    def released(self) -> list[tuple[int, tuple[int, int]]]:
        """Workers and the streams, by iteration and number, that others have taken up since this was asked."""
        return []

    def _return(self, keys: Iterator[Key] | dict[Key, None]) -> None:
        for key in keys:
            if key in self._wanted:
                heapq.heappush(self._waiting, key)
