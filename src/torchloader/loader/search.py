"""A search for the smallest sufficient number of workers, by measurements with the numbers that are tried.

The rate at which a trainer gets its batches grows with the workers, ever more slowly, and finally not at all: so all
numbers from some threshold on suffice. The search keeps the rate of each number that was tried, and narrows down the
threshold. Of two rates that differ by less than `SAME` the greater is taken to be no better.
"""

from __future__ import annotations

import math

from torchloader.loader.look import Look
from torchloader.prediction.curve import SAME, sufficient

__all__ = ["Search"]

_WAITING = 0.03  # the fraction of its time that a trainer may wait: more workers could not bring more than that
_SPARE = 0.5  # times the square root of the workers that are busy, which is how much their number varies
_STEP = 1.5  # from a number that does not suffice to the next that is tried, where nothing says more
_LEAP = 8  # times as many at once, at most: the more are tried, the more a wrong measurement costs
_SHARED = 1.2  # times as long as with few workers takes a batch where these share something
_DRIFT = 1.5  # times as fast, or slow, twice in a row: what was known does not hold any more


class Search:
    """The numbers of workers that were tried, and the choice of the next."""

    def __init__(self) -> None:
        self.rates: dict[int, float] = {}  # batches per second with each
        self._looks: dict[int, tuple[float, float, bool]] = {}  # the last, the seconds of a worker, and if it waited
        self._drifts = (0, 0)  # the direction, and how often in a row

    def observe(self, look: Look) -> bool:
        """Add a measurement. Returns True if it contradicts the earlier ones, which are then discarded."""
        now = look.rate, look.service or 1.0, look.waiting > _WAITING
        before, drifted = self._looks.get(look.workers), False
        if before is None:
            self._drifts = 0, 0
        else:
            direction = _direction(now[0] / before[0]) or -_direction(now[1] / before[1])
            is_same = direction != 0 and direction == self._drifts[0]
            self._drifts = direction, self._drifts[1] + 1 if is_same else abs(direction)
            if self._drifts[1] >= 2:
                self.forget()
                drifted = True
            elif direction:
                return False  # a hiccup, unless the next look says the same
        self._drop_contradicted(look.workers, now[1])
        known = self.rates.get(look.workers)
        self.rates[look.workers] = look.rate if known is None else (known + look.rate) / 2
        self._looks[look.workers] = now
        return drifted

    def forget(self, workers: int | None = None) -> None:
        """Discard all measurements, except that with `workers`."""
        kept = self.rates.keys() & {workers}
        self.rates = {number: rate for number, rate in self.rates.items() if number in kept}
        self._looks = {number: look for number, look in self._looks.items() if number in kept}
        self._drifts = 0, 0

    def _drop_contradicted(self, workers: int, service: float) -> None:
        """Discard measurements where a batch took longer with fewer workers, or less time with more.

        Workers that share something delay each other and never speed each other up, so the storage must have changed.
        """
        for number, (_, before, _) in list(self._looks.items()):
            fewest, most = (before, service) if number < workers else (service, before)
            if number != workers and fewest > _DRIFT * most:
                del self._looks[number], self.rates[number]

    def next(self, look: Look, cores: float, limit: int) -> int:
        """Return the number of workers to use after this observed measurement: another to try, or the result."""
        if look.workers > limit:
            return limit
        if self._drifts[1]:
            return look.workers  # until it is clear whether what is known still holds
        if look.waiting <= _WAITING:
            return self._fewer(look.workers, _staffed(look.busy))
        least = math.ceil(look.demand(cores) - 1e-9)
        found, largest = sufficient(self.rates), max(self.rates)
        if found < look.workers <= least and not self._shares(look):
            # Which nothing but other programs explains: these workers do not hold each other up.
            found = look.workers
        if found == largest and found == look.workers:
            if found < limit:
                return min(limit, _LEAP * found, max(_staffed(look.demand(cores)), math.ceil(_STEP * found)))
            return found
        return min(limit, self._narrowed(found, least))

    def _fewer(self, workers: int, demand: int) -> int:
        """Return the number that the trainer needs when it does not wait, but none that is known to be insufficient."""
        enough = (1 - SAME) * self.rates.get(workers, 0.0)
        fewer = [number for number, (_, _, waited) in self._looks.items() if waited and number < workers]
        scarce = max((number for number in fewer if self.rates[number] < enough), default=0)
        return min(workers, max(demand, scarce + 1))

    def _shares(self, look: Look) -> bool:
        """Return whether workers compete for something: a batch takes longer than with the fewest that were tried."""
        _, least, _ = self._looks[min(self._looks)]
        return look.service > _SHARED * least

    def _narrowed(self, found: int, demand: int) -> int:
        """Return a number between the next smaller one that was tried and the smallest sufficient one, or the
        latter."""
        scarce = max((number for number in self.rates if number < found), default=0)
        if not scarce:
            return max(1, min(found, demand))
        # Below the knee the rate grows in proportion to the workers, so it is there.
        knee = math.ceil(scarce * self.rates[found] / self.rates[scarce] - 1e-9)
        return min(found, max(scarce + 1, knee))


def _staffed(busy: float) -> int:
    """Return how many workers are needed for `busy` to be busy on average: the square-root staffing rule.

    A slow batch then does not delay others, as another worker is free.
    """
    return max(1, math.ceil(busy + _SPARE * math.sqrt(busy) - 1e-9))


def _direction(ratio: float) -> int:
    """Return 1 for an increase beyond noise, -1 for a decrease beyond it, else 0."""
    return int(ratio > _DRIFT) - int(ratio < 1 / _DRIFT)
