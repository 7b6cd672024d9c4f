"""Estimates of numbers with their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Belief:
    """An estimate of a number: mean and variance.

    Raises ValueError for a negative mean, or a variance that is not positive.
    """

    mean: float
    variance: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and self.mean >= 0):
            raise ValueError(f"mean must not be negative, not {self.mean}")
        if not (math.isfinite(self.variance) and self.variance > 0):
            raise ValueError(f"variance must be positive, not {self.variance}")

    @classmethod
    def of(cls, values: Sequence[float], least: float = 0.0) -> Belief:
        """Return the prediction for a further value of a sample. `least` is the smallest standard deviation to assume.

        Raises ValueError for fewer than two values.
        """
        if len(values) < 2:
            raise ValueError(f"a belief comes from at least two values, not {len(values)}")
        mean = math.fsum(values) / len(values)
        variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
        return cls(mean, max(variance * (1 + 1 / len(values)), least**2, 1e-300))

    def blend(self, other: Belief) -> Belief:
        """Combine two estimates, each weighted by its precision."""
        share = other.variance / (self.variance + other.variance)
        return Belief(self.mean * share + other.mean * (1 - share), self.variance * share)


@dataclass(frozen=True, slots=True)
class Guess:
    """The estimates for a job before it has run, in seconds per sample of one device.

    Args:
        compute: time of the device, if it never waits.
        service: time of one loading worker.
        shared: time of what all loading workers share, such as a disk.
    """

    compute: Belief
    service: Belief
    shared: Belief
