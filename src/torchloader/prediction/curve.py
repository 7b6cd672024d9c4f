"""The throughput of one device of a job as a function of its loading workers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Belief:
    """An estimate of a number: mean and variance."""

    mean: float
    variance: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mean) and self.mean >= 0):
            raise ValueError(f"mean must not be negative, not {self.mean}")
        if not (math.isfinite(self.variance) and self.variance > 0):
            raise ValueError(f"variance must be positive, not {self.variance}")

    @classmethod
    def of(cls, values: Sequence[float], least: float = 0.0) -> Belief:
        """Return the prediction for a further value of a sample."""
        if len(values) < 2:
            raise ValueError(f"a belief comes from at least two values, not {len(values)}")
        mean = statistics.fmean(values)
        return cls(mean, max(statistics.variance(values, mean) * (1 + 1 / len(values)), least**2, 1e-300))


@dataclass(frozen=True, slots=True)
class Guess:
    """The estimates for a job before it has run, in seconds per sample of one device."""

    compute: Belief  # time of the device, if it never waits
    service: Belief  # time of one loading worker
    shared: Belief  # time of what all loading workers share, such as a disk


SAME = 0.03  # of a rate: less is not worth a worker, and no more than noise


def sufficient(rates: Mapping[int, float]) -> int:
    """Return the smallest number of workers whose rate is within `SAME` of the best."""
    best = max(rates.values())
    return min(workers for workers, rate in rates.items() if rate >= (1 - SAME) * best)


@dataclass(frozen=True, slots=True)
class Curve:
    """Samples per second of one device with w loading workers: min(ceiling, w / (service + shared * w))."""

    ceiling: float  # samples per second that the device computes when it never waits for data (G)
    service: float  # seconds of one worker's time per sample (a)
    shared: float = 0.0  # seconds per sample of what all workers of the device share, such as a disk (d)

    def __post_init__(self) -> None:
        for name, value in (("ceiling", self.ceiling), ("service", self.service)):
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} must be positive, not {value}")
        if not (math.isfinite(self.shared) and self.shared >= 0):
            raise ValueError(f"shared must not be negative, not {self.shared}")

    def loading(self, workers: float) -> float:
        """Return the samples per second that `workers` load, T(w)."""
        return workers / (self.service + self.shared * workers) if workers > 0 else 0.0

    def throughput(self, workers: float) -> float:
        """Return the samples per second that the device trains with that many workers, f(w)."""
        return min(self.ceiling, self.loading(workers))

    def scaled(self, speed: float) -> Curve:
        """Return the curve of a device that computes `speed` times as fast. Loading stays as it is."""
        return self if speed == 1.0 else replace(self, ceiling=self.ceiling * speed)

    def enough(self, at_most: int) -> int:
        """Return the smallest number of workers with which the device does not wait; `at_most` if none suffices."""
        share = 1 - self.shared * self.ceiling
        if share <= 0:
            return at_most
        return max(1, min(at_most, math.ceil(self.ceiling * self.service / share - 1e-9)))
