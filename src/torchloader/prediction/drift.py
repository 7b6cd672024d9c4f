"""Detects lasting changes in measurements."""

from __future__ import annotations

__all__ = ["Drift"]


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
