"""What is held to be true of a number, and how surely."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Belief", "Guess"]


@dataclass(frozen=True, slots=True)
class Belief:
    """A number with the variance of what is not known of it.

    Raises ValueError for a mean that is negative, or a variance that is not positive.
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
        """What a sample says of a value drawn like it. `least` is the smallest standard deviation to admit to.

        Raises ValueError for fewer than two values.
        """
        if len(values) < 2:
            raise ValueError(f"a belief comes from at least two values, not {len(values)}")
        mean = math.fsum(values) / len(values)
        variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
        return cls(mean, max(variance * (1 + 1 / len(values)), least**2, 1e-300))

    def blend(self, other: Belief) -> Belief:
        """Both together, each by how sure it is."""
        share = other.variance / (self.variance + other.variance)
        return Belief(self.mean * share + other.mean * (1 - share), self.variance * share)


@dataclass(frozen=True, slots=True)
class Guess:
    """What is believed of a job before it has run, all in seconds per sample of one device.

    Args:
        compute: of the device, when it never waits.
        service: of one loading worker's time.
        shared: of what all loading workers share.
    """

    compute: Belief
    service: Belief
    shared: Belief
