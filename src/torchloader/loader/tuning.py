"""The result of num_workers="auto", as one line."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Limit", "Tuning"]


class Limit(StrEnum):
    """The reason why there are no more workers.

    Attributes:
        SEARCH: another number is tried next.
        NEED: more are not needed.
        GAIN: more would not be faster.
        MOST: `max_workers` is reached.
        CORES: the cores of the node are used up.
    """

    SEARCH = "another number is tried next"
    NEED = "more are not needed"
    GAIN = "more bring nothing"
    MOST = "max_workers allows no more"
    CORES = "the cores of the node allow no more"


@dataclass(frozen=True, slots=True)
class Tuning:
    """The result of num_workers="auto", and the last measurement.

    Attributes:
        workers: the number of workers that was measured.
        step: seconds that the trainer computes per batch.
        service: seconds of a worker per batch.
        share: the fraction of these that is CPU time, from 0 to 1.
        waiting: the fraction of its time that the trainer waits, from 0 to 1.
        limit: the reason why there are no more workers.
    """

    workers: int
    step: float
    service: float
    share: float
    waiting: float
    limit: Limit

    def __str__(self) -> str:
        return (
            f"{self.workers} loading worker{'s' * (self.workers != 1)}: the trainer computes {_ms(self.step)} a batch "
            f"and waits {self.waiting:.0%} of its time, a worker takes {_ms(self.service)} a batch ({self.share:.0%} "
            f"of it CPU time); {self.limit}"
        )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
