"""A job of a simulation: what is submitted, and how fast it would really train."""

from __future__ import annotations

from dataclasses import dataclass

from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import Spec

__all__ = ["Job"]


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a simulation.

    Args:
        spec: what is submitted.
        curve: how fast one of its devices trains.
        believed: the curve that the scheduler goes by, where that is another.
    """

    spec: Spec
    curve: Curve
    believed: Curve | None = None

    @property
    def shortest(self) -> float:
        """Seconds that it would take if it never waited for devices or data."""
        return self.spec.iterations * self.spec.batch / (self.spec.size * self.curve.ceiling)
