"""What a loader has done."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters", "Given"]


@dataclass(frozen=True, slots=True)
class Counters:
    """What a loader has done since it was made.

    batches, samples: given to the trainer. waited: seconds in which it wanted one and none was ready. computed: the
    seconds between them that it did not wait. made, service: samples that workers have made, and the seconds of a
    worker's time that one took on average. depth: batches that lie ready now. workers: those that take batches now.
    replaced: workers that died. shared: batches that workers of other loaders have made (shared_as).
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
    """What was given to the trainer, as in Counters."""

    batches: int = 0
    samples: int = 0
    waited: float = 0.0
    computed: float = 0.0

    def note(self, samples: int, waited: float, computed: float) -> None:
        """One more batch."""
        self.batches += 1
        self.samples += samples
        self.waited += waited
        self.computed += computed
