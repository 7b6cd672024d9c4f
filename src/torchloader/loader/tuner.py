"""Finds the smallest number of workers that keeps a trainer from waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchloader.prediction.curve import Curve

if TYPE_CHECKING:
    from torchloader.loader.crew import Crew

__all__ = ["Tuner"]

_LOOKS = 8  # batches for each worker, between two decisions
_SPARE = 1.1  # so much faster than the trainer are they to load
_WAITING = 0.02  # the fraction of its time that a trainer may wait
_HELPED = 0.9  # one worker more has helped if it then waits so much less


class Tuner:
    """Watches a trainer's batches and resizes its crew, after every few.

    The trainer's rate comes from the time between its batches in which it did not wait, the workers' from the time that
    their batches took. Where that says that there are enough and the trainer waits all the same (because workers
    share what does not grow with them), more are tried as long as that makes it wait less.
    """

    def __init__(self, at_most: int) -> None:
        self._at_most = at_most
        self._restart(0)
        self._seconds, self._made = 0.0, 0
        self._least = 1  # with fewer it was seen to wait
        self._before: tuple[int, float] | None = None  # workers, and fraction of waiting with them

    def _restart(self, size: int) -> None:
        self._size, self._batches, self._waited, self._computed = size, 0, 0.0, 0.0

    def note(self, crew: Crew, waited: float, computed: float) -> None:
        """A batch was given, for which the trainer waited after it had computed."""
        if crew.ready != self._size:
            # What new workers do before all of them are there tells nothing.
            self._restart(crew.ready)
            self._seconds, self._made = crew.tally.seconds, crew.tally.batches
            return
        self._batches += 1
        self._waited += waited
        self._computed += computed
        if self._batches >= _LOOKS * max(1, self._size) and crew.ready == crew.size:
            self._decide(crew)

    def _decide(self, crew: Crew) -> None:
        made = crew.tally.batches - self._made
        service = (crew.tally.seconds - self._seconds) / made if made else 0.0
        waiting = self._waited / max(1e-9, self._waited + self._computed)
        if service > 0 and self._computed > 0:
            curve = Curve(_SPARE * self._batches / self._computed, service)
            size = self._better(curve.enough(self._at_most), waiting)
            self._before = (self._size, waiting)
            if size != crew.size:
                crew.resize(size)
        self._restart(crew.ready)
        self._seconds, self._made = crew.tally.seconds, crew.tally.batches

    def _better(self, enough: int, waiting: float) -> int:
        if enough > self._size or waiting <= _WAITING:
            return min(self._at_most, max(enough, self._least))
        if self._before is not None and self._before[0] == self._size - 1 and waiting > _HELPED * self._before[1]:
            return self._size
        self._least = min(self._at_most, self._size + 1)
        return self._least
