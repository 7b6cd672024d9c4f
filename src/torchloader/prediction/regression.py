"""Learns a worker's seconds per sample as a linear function of the number of workers that load at once, also as it
drifts."""

from __future__ import annotations

import math

from torchloader.prediction.belief import Belief


class Drift:
    """Detects residuals that stay on one side, by a two-sided cumulative sum (Page 1954).

    Args:
        allowance: standard deviations of a residual that are not counted.
        threshold: the sum of what is counted at which a drift is reported. With normal noise and the defaults there is
            one false report in some hundred thousand observations, and a lasting change by two standard deviations is
            found after about six.
    """

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
    """y = intercept + slope * x by recursive least squares with forgetting; both are never negative.

    Stored as the sums that determine it (the information form), to which a prior is added like an observation. The
    noise is assumed to be proportional to y, and is estimated.

    Args:
        intercept, slope: the prior; without it the first observation is taken as the intercept, with a large variance.
        forgetting: the weight of an observation relative to the next.
    """

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
        """Add an observation. Returns True if it shows a drift; then earlier observations are discarded.

        Raises ValueError for a y that is not positive or an x that is negative.
        """
        if not (math.isfinite(x) and math.isfinite(y) and x >= 0 and y > 0):
            raise ValueError(f"an observation must be of finite numbers, x not negative and y positive, not {x}, {y}")
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
        """Return intercept and slope, at least one of them positive. Raises ValueError without prior and
        observations."""
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
