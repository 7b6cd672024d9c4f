"""Learns a job's curve while it runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from torchloader.prediction.curve import Belief, Curve, Guess


class Drift:
    """Detects residuals that stay on one side, by a two-sided cumulative sum (Page 1954). With normal noise and the
    defaults there is one false report in some hundred thousand observations, and a lasting change by two standard
    deviations is found after about six."""

    def __init__(self, allowance: float = 0.5, threshold: float = 9.0) -> None:
        self._allowance, self._threshold = allowance, threshold
        self._above = self._below = 0.0

    def add(self, residual: float) -> bool:
        """Add a residual, in standard deviations. Returns True, and resets the sums, if it shows a drift."""
        self._above = max(0.0, self._above + residual - self._allowance)
        self._below = max(0.0, self._below - residual - self._allowance)
        if max(self._above, self._below) <= self._threshold:
            return False
        self._above = self._below = 0.0
        return True


_LEAST_NOISE = 0.02  # of the value: nothing measured on a machine with others is surer than that
_CLIP = 4.0  # standard deviations beyond which a residual is a hiccup, and counts as no more
_SAME = 1e-12  # of two numbers whose difference is nothing but rounding
_SETTLED = 8  # observations before a residual says anything about a drift


class Line:
    """y = intercept + slope * x by recursive least squares with forgetting; both are never negative. Stored as the sums
    that determine it (the information form), to which the prior is added like an observation; without a prior, the
    first observation is taken as the intercept. The noise is assumed to be proportional to y, and is estimated."""

    def __init__(self, intercept: Belief | None = None, slope: Belief | None = None, forgetting: float = 0.98) -> None:
        self._prior = (intercept, slope) if intercept is not None and slope is not None else None
        self._forgetting = forgetting
        self._noise = 0.1**2
        self._drift = Drift()
        self._clear()

    def _clear(self) -> None:
        self._count = 0
        self._ones = self._x = self._xx = self._y = self._xy = 0.0

    @property
    def known(self) -> bool:
        """Whether there is a prior or an observation."""
        return self._prior is not None

    def observe(self, x: float, y: float) -> bool:
        """Add an observation. Returns True if it shows a drift; then earlier observations are discarded."""
        if self._prior is None:
            self._prior = self._vague(y)
        expected = self.at(x)
        residual = max(-_CLIP, min(_CLIP, (y - expected) / (expected * math.sqrt(self._noise))))
        drifted = self._count >= _SETTLED and self._drift.add(residual)
        if drifted:
            self._clear()
            self._prior = self._vague(y)
        elif self._count >= _SETTLED:
            y = expected * (1 + residual * math.sqrt(self._noise))
            self._noise = max(_LEAST_NOISE**2, 0.95 * self._noise + 0.05 * ((y - expected) / expected) ** 2)
        # Weighted by the expected value, not the observed one: else values that are small by chance would dominate.
        weight, keep = 1 / max(expected, 0.1 * y) ** 2, self._forgetting
        self._ones = keep * self._ones + weight
        self._x = keep * self._x + weight * x
        self._xx = keep * self._xx + weight * x * x
        self._y = keep * self._y + weight * y
        self._xy = keep * self._xy + weight * x * y
        self._count += 1
        return drifted

    @staticmethod
    def _vague(y: float) -> tuple[Belief, Belief]:
        return Belief(y, (10 * y) ** 2), Belief(0.0, (0.1 * y) ** 2)

    def _information(self) -> tuple[float, float, float, float, float]:
        if self._prior is None:
            raise ValueError("nothing has been observed yet, and there is no prior")
        (intercept, slope), noise = self._prior, self._noise
        return (
            self._ones / noise + 1 / intercept.variance,
            self._x / noise,
            self._xx / noise + 1 / slope.variance,
            self._y / noise + intercept.mean / intercept.variance,
            self._xy / noise + slope.mean / slope.variance,
        )

    def coefficients(self) -> tuple[float, float]:
        """Return intercept and slope, at least one of them positive."""
        ones, x, xx, y, xy = self._information()
        determinant = ones * xx - x * x
        if determinant <= _SAME * ones * xx:
            return y / ones, 0.0
        intercept = (y * xx - x * xy) / determinant
        slope = (ones * xy - x * y) / determinant
        if slope < 0:
            return y / ones, 0.0
        if intercept <= 0:
            return 0.0, xy / xx
        return intercept, slope

    def at(self, x: float) -> float:
        """Return the expected y at x."""
        intercept, slope = self.coefficients()
        return intercept + slope * x

    def variance(self, x: float) -> float:
        """Return the variance of the expected y at x."""
        ones, cross, xx, _, _ = self._information()
        determinant = max(ones * xx - cross * cross, _SAME * ones * xx)
        return max(0.0, (xx - 2 * cross * x + ones * x * x) / determinant)


_HELD_UP_FRACTION = 0.05  # of an interval: a device that waits for longer is held up by loading
_COMPUTES = 0.02  # of an interval: one that computes for less says nothing about computing


@dataclass(frozen=True, slots=True)
class Interval:
    """What one device of a job did in a period with a constant number of workers."""

    workers: int  # the workers that loaded for it
    samples: float  # samples that it trained on
    seconds: float  # the length of the period
    waited: float = 0.0  # seconds in which it waited for data
    service: float | None = None  # mean seconds of one worker's time per sample; None if unknown


class Measured:
    """The curve of a running job: the prior estimate combined with measurements, weighted by their precision. Loading:
    a worker's time per sample is `service + shared * w` if w workers load at once. If the device waits for data this is
    derived from its throughput, w / T; else from the workers' clocks, with the number of workers that were busy.
    Computing: from the time in which the device did not wait."""

    def __init__(self, guess: Guess | None = None, forgetting: float = 0.98) -> None:
        self._forgetting = forgetting
        self._loading = Line(guess.service, guess.shared, forgetting) if guess else Line(forgetting=forgetting)
        # How fast a device computes does not depend on the workers: a line without slope.
        self._computing = Line(guess.compute, Belief(0.0, 1e-30), forgetting) if guess else Line(forgetting=forgetting)
        self._enough, self._service = 0, 0.0  # the smallest number of workers that was seen to be enough

    def observe(self, interval: Interval) -> bool:
        """Add an interval, but not one in which the number of workers changed, since batches of before are trained on
        after it. Returns True if the job's behavior has changed."""
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
        """Return the present estimate of the curve."""
        compute = self._computing.at(0.0)
        if not self._loading.known:
            return Curve(1 / compute, max(1, self._enough) * compute)
        service, shared = self._loading.coefficients()
        return Curve(1 / compute, max(service, 1e-6 * (service + shared)), shared)

    def between(self, workers: int, level: float = 0.95) -> tuple[float, float]:
        """Return the interval that contains the samples per second and device with that probability (`level`)."""
        deviations = NormalDist().inv_cdf((1 + level) / 2)
        compute = self._computing.at(0.0), deviations * math.sqrt(self._computing.variance(0.0))
        fastest = 1 / max(compute[0] - compute[1], 0.01 * compute[0])
        if not self._loading.known:
            return 0.0, fastest
        service = self._loading.at(workers), deviations * math.sqrt(self._loading.variance(workers))
        loaded = workers / max(service[0] - service[1], 0.01 * service[0])
        return min(1 / sum(compute), workers / sum(service)), min(fastest, loaded)
