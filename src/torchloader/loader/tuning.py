"""What num_workers="auto" has found, in a line."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Limit", "Tuning"]


class Limit(StrEnum):
    """Why there are no more workers."""

    SEARCH = "another number is tried next"
    NEED = "more are not needed"
    GAIN = "more bring nothing"
    MOST = "max_workers allows no more"
    CORES = "the cores of the node allow no more"


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was found of a loader, and measured last.

    workers: how many it was measured with. step: seconds that the trainer computes for a batch. service: seconds of a
    worker that a batch takes. share: the fraction of these that is CPU time. waiting: the fraction of its time that
    the trainer waits. limit: why there are no more.
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
