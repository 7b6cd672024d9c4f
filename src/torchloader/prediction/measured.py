"""A job's curve, learnt from how it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from torchloader.prediction.belief import Belief, Guess
from torchloader.prediction.curve import Curve
from torchloader.prediction.regression import Line

__all__ = ["Interval", "Measured"]

_HELD_UP_FRACTION = 0.05  # of an interval: a device that waits for longer is held up by loading
_COMPUTES = 0.02  # of an interval: one that computes for less says nothing about computing


@dataclass(frozen=True, slots=True)
class Interval:
    """What one device of a job did for a while, in which its number of workers stayed the same.

    Args:
        workers: that loaded for it.
        samples: that it trained on.
        seconds: how long.
        waited: seconds of them in which it waited for data.
        service: mean seconds of one worker's time that a sample took, where that is known.

    Raises ValueError for what cannot be: no worker, no time, a negative number, more waiting than time.
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
    """A running job's curve: what was believed before, and what has been measured since, each by how sure it is.

    Loading: a worker's time per sample is `service + shared * w` where w workers load at once. Where the device waits
    for data that is told by its throughput, w / T; else by the workers' own clocks, with as many of them at work as the
    samples needed. Computing: by the time in which the device did not wait.

    Args:
        guess: what is believed before the job runs.
        forgetting: the weight of an interval against that of the next.
    """

    def __init__(self, guess: Guess | None = None, forgetting: float = 0.98) -> None:
        self._forgetting = forgetting
        self._loading = Line(guess.service, guess.shared, forgetting) if guess else Line(forgetting=forgetting)
        # How fast a device computes does not depend on the workers: a line without slope.
        self._computing = Line(guess.compute, Belief(0.0, 1e-30), forgetting) if guess else Line(forgetting=forgetting)
        self._enough, self._service = 0, 0.0  # the smallest number of workers that was seen to be enough

    def observe(self, interval: Interval) -> bool:
        """Learn from an interval; True where it shows that the job is not any more what it was.

        An interval without a sample says nothing. Leave out the one in which the number of workers changed: batches
        made before it are trained on after it.
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
        """Whether there is a curve to speak of yet."""
        return self._computing.known

    def curve(self) -> Curve:
        """The curve as it is known now.

        Where loading never held the device up, and the workers' times are not told, it is taken to be just fast enough.

        Raises ValueError where nothing is known yet.
        """
        compute = self._computing.at(0.0)
        if not self._loading.known:
            return Curve(1 / compute, max(1, self._enough) * compute)
        service, shared = self._loading.coefficients()
        return Curve(1 / compute, max(service, 1e-6 * (service + shared)), shared)

    def between(self, workers: int, level: float = 0.95) -> tuple[float, float]:
        """Samples per second and device with so many workers: at least, and at most, with that probability.

        Raises ValueError where nothing is known yet.
        """
        deviations = NormalDist().inv_cdf((1 + level) / 2)
        compute = self._computing.at(0.0), deviations * math.sqrt(self._computing.variance(0.0))
        fastest = 1 / max(compute[0] - compute[1], 0.01 * compute[0])
        if not self._loading.known:
            return 0.0, fastest
        service = self._loading.at(workers), deviations * math.sqrt(self._loading.variance(workers))
        loaded = workers / max(service[0] - service[1], 0.01 * service[0])
        return min(1 / sum(compute), workers / sum(service)), min(fastest, loaded)
