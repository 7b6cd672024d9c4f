"""Batches that the trainer makes itself: without workers, or of a stream that it reads."""

from __future__ import annotations

import time

from dragon.serialization import dumps, loads
from torchloader.loader.effort import Effort
from torchloader.loader.making import Maker
from torchloader.loader.members import Tally
from torchloader.loader.outcome import Outcome
from torchloader.loader.randomness import Kept
from torchloader.loader.snapshot import Snapshots, received
from torchloader.loader.tasks import Task

__all__ = ["Here"]


class Here:
    """Makes batches in the trainer from its own dataset; for streams that may move to a worker, from a copy of it."""

    def __init__(self, maker: Maker, snapshots: Snapshots, tally: Tally) -> None:
        self._maker, self._snapshots, self._tally = maker, snapshots, tally
        self._makers: dict[int, Maker] = {}  # of iterations with streams

    def keep_streams(self, iteration: int) -> None:
        """Read the streams of an iteration from the trainer's own dataset to the end."""
        self._makers[iteration] = self._maker

    def forget(self, iteration: int) -> None:
        """Release what is kept for an iteration."""
        self._makers.pop(iteration, self._maker).forget(iteration)

    def maker_for(self, task: Task) -> Maker:
        """Return the maker for the batch of a task."""
        if task.start is None or task.iteration in self._makers:
            return self._makers.get(task.iteration, self._maker)
        kept = self._snapshots[self._snapshots.number_for(task.iteration)]
        return self._makers.setdefault(task.iteration, received(loads(dumps(kept))))

    def make(self, task: Task, maker: Maker | None = None) -> Outcome:
        """Make the batch, and restore the program's random state."""
        start = time.perf_counter()
        with Kept():
            outcome = (maker or self._maker).make(task)
        self._tally.note(Effort(time.perf_counter() - start), outcome.samples)
        return outcome
