"""Batches that the trainer makes itself, where there are no workers or a stream is its own."""

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
    """What makes them: the trainer's own dataset; for streams that may move to a worker a copy of it."""

    def __init__(self, maker: Maker, snapshots: Snapshots, tally: Tally) -> None:
        self._maker, self._snapshots, self._tally = maker, snapshots, tally
        self._makers: dict[int, Maker] = {}  # of iterations with streams

    def keep_streams(self, iteration: int) -> None:
        """The streams of an iteration are the trainer's to the end."""
        self._makers[iteration] = self._maker

    def forget(self, iteration: int) -> None:
        """An iteration is over."""
        self._makers.pop(iteration, self._maker).forget(iteration)

    def maker_for(self, task: Task) -> Maker:
        """What makes the batch of a task, which is begun."""
        if task.start is None or task.iteration in self._makers:
            return self._makers.get(task.iteration, self._maker)
        kept = self._snapshots[self._snapshots.number_for(task.iteration)]
        return self._makers.setdefault(task.iteration, received(loads(dumps(kept))))

    def make(self, task: Task, maker: Maker | None = None) -> Outcome:
        """The batch, and the program's random numbers as they were."""
        start = time.perf_counter()
        with Kept():
            outcome = (maker or self._maker).make(task)
        self._tally.note(Effort(time.perf_counter() - start), outcome.samples)
        return outcome
