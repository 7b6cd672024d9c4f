"""Learns a job's curve while it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from torchloader.prediction.belief import Belief, Guess
from torchloader.prediction.curve import Curve
from torchloader.prediction.regression import Line

_HELD_UP_FRACTION = 0.05  # of an interval: a device that waits for longer is held up by loading
_COMPUTES = 0.02  # of an interval: one that computes for less says nothing about computing


@dataclass(frozen=True, slots=True)
class Interval:
    """What one device of a job did in a period with a constant number of workers.

    Args:
        workers: the workers that loaded for it.
        samples: samples that it trained on.
        seconds: the length of the period.
        waited: seconds in which it waited for data.
        service: mean seconds of one worker's time per sample; None if unknown.

    Raises ValueError for fewer than one worker, a period that is not positive, a negative number, or waited > seconds.
    """

    workers: int
    samples: float
    seconds: float
    waited: float = 0.0
    service: float | None = None

    def __post_init__(self) -> None:
        numbers = (self.samples, self.seconds, self.waited, self.service or 0.0)
        if not all(math.isfinite(number) and number >= 0 for number in numbers) or self.workers < 1:
            raise ValueError(f"an interval has workers and times that are not negative, not {self}")
        if self.seconds <= 0 or self.waited > self.seconds:
            raise ValueError(f"an interval takes time, and waits for no more than that, not {self}")


class Measured:
    """The curve of a running job: the prior estimate combined with measurements, weighted by their precision.

    Loading: a worker's time per sample is `service + shared * w` if w workers load at once. If the device waits for
    data this is derived from its throughput, w / T; else from the workers' clocks, with the number of workers that were
    busy. Computing: from the time in which the device did not wait.

    Args:
        guess: the estimates before the job runs.
        forgetting: the weight of an interval relative to the next.
    """

    def __init__(self, guess: Guess | None = None, forgetting: float = 0.98) -> None:
        self._forgetting = forgetting
        self._loading = Line(guess.service, guess.shared, forgetting) if guess else Line(forgetting=forgetting)
        # How fast a device computes does not depend on the workers: a line without slope.
        self._computing = Line(guess.compute, Belief(0.0, 1e-30), forgetting) if guess else Line(forgetting=forgetting)
        self._enough, self._service = 0, 0.0  # the smallest number of workers that was seen to be enough

    def observe(self, interval: Interval) -> bool:
        """Add an interval. Returns True if it shows that the job's behavior has changed.

        An interval without samples is ignored. The caller must leave out the interval in which the number of workers
        changed, since batches made before the change are trained on after it.
        """
        if interval.samples == 0:
            return False
        drifted = False
        computed = interval.seconds - interval.waited
        if computed > _COMPUTES * interval.seconds:
            drifted |= self._computing.observe(0.0, computed / interval.samples)
        if interval.waited > _HELD_UP_FRACTION * interval.seconds:
            drifted |= self._loading.observe(interval.workers, interval.workers * interval.seconds / interval.samples)
        elif interval.service:
            # The mean of a while, as the noise of this interval's time would be in both coordinates of the line.
            self._service += (interval.service - self._service) * (0.1 if self._service else 1.0)
            at_once = min(interval.workers, interval.samples * self._service / interval.seconds)
            drifted |= self._loading.observe(at_once, interval.service)
        elif drifted or not self._enough:
            self._enough = interval.workers
        else:
            self._enough = min(self._enough, interval.workers)
        return drifted

    @property
    def known(self) -> bool:
        """Whether a curve can be computed."""
        return self._computing.known

    def curve(self) -> Curve:
        """Return the present estimate of the curve.

        If loading never delayed the device and the workers' times are unknown, loading is taken to be just fast enough.
        Raises ValueError if nothing is known yet.
        """
        compute = self._computing.at(0.0)
        if not self._loading.known:
            return Curve(1 / compute, max(1, self._enough) * compute)
        service, shared = self._loading.coefficients()
        return Curve(1 / compute, max(service, 1e-6 * (service + shared)), shared)

    def between(self, workers: int, level: float = 0.95) -> tuple[float, float]:
        """Return the interval that contains the samples per second and device with that probability (`level`).

        Raises ValueError if nothing is known yet.
        """
        deviations = NormalDist().inv_cdf((1 + level) / 2)
        compute = self._computing.at(0.0), deviations * math.sqrt(self._computing.variance(0.0))
        fastest = 1 / max(compute[0] - compute[1], 0.01 * compute[0])
        if not self._loading.known:
            return 0.0, fastest
        service = self._loading.at(workers), deviations * math.sqrt(self._loading.variance(workers))
        loaded = workers / max(service[0] - service[1], 0.01 * service[0])
        return min(1 / sum(compute), workers / sum(service)), min(fastest, loaded)
