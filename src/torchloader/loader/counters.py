"""Counters of what a loader has done."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters", "Given"]


@dataclass(frozen=True, slots=True)
class Counters:
    """What a loader has done since it was made.

    Attributes:
        batches: batches given to the trainer.
        samples: samples given to the trainer.
        waited: seconds in which the trainer wanted a batch and none was ready.
        computed: seconds between batches in which the trainer did not wait.
        made: samples that workers have made.
        service: average seconds of a worker's time per sample.
        depth: batches that are ready now.
        workers: workers that take batches now.
        replaced: workers that died.
        shared: batches that workers of other loaders have made (`shared_as`).
    """

    batches: int
    samples: int
    waited: float
    computed: float
    made: int
    service: float
    depth: int
    workers: int
    replaced: int
    shared: int = 0


@dataclass(slots=True)
class Given:
    """The part of Counters that the trainer's side counts."""

    batches: int = 0
    samples: int = 0
    waited: float = 0.0
    computed: float = 0.0

    def note(self, samples: int, waited: float, computed: float) -> None:
        """Count one more batch."""
        self.batches += 1
        self.samples += samples
        self.waited += waited
        self.computed += computed
