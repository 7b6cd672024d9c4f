"""What a loader has done."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters"]


@dataclass(frozen=True, slots=True)
class Counters:
    """What a loader has done since it was made.

    batches, samples: given to the trainer. waited: seconds in which it wanted one and none was ready. computed: the
    seconds between them that it did not wait. made, service: samples that workers have made, and the seconds of a
    worker's time that one took on average. depth: batches that lie ready now. workers: those that take batches now.
    replaced: workers that died.
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
