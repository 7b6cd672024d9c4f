"""Shares the cores of a node among the loaders of all programs, and the runs of torchloader, on it."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable

import msgspec

from dragon.claims import Claim
from dragon.cores import usable_cores
from dragon.infrastructure.errors import RunEndedError

CORES = "TORCHLOADER_CORES"
_NAME = "loading_cores"
_LEASE_S = 5.0  # seconds from one batch to the next after which others may take the cores
_RENEWAL_S = 1.0
_LEAST_SHARE = 1 / 16  # cores that a worker counts as, however little it computes: it takes memory
_VARIATION = 0.5  # standard deviations of the number of workers that compute by which it may exceed the cores
_ROUNDING = 0.1  # workers: a share is measured, and 1.02 cores are one

_log = logging.getLogger(__name__)


class Lease(msgspec.Struct):
    """The cores that a loader wants and holds, in a file shared by the loaders of a node."""

    wanted: float  # cores that its wanted workers would use
    held: float  # cores that its granted workers use
    until: float  # when the lease expires, in seconds of the machine's monotonic clock


def cores_of_node() -> float:
    """Return how many cores all loading workers of this node may use: TORCHLOADER_CORES, or the usable ones."""
    text = os.environ.get(CORES, "")
    if not text:
        return usable_cores()
    try:
        cores = float(text)
    except ValueError:
        cores = math.nan
    if not 0 < cores < math.inf:
        raise ValueError(f"{CORES} must be a positive number of cores, not {text!r}")
    return cores


def fair_share(wanted: float, others: Iterable[float], cores: float) -> float:
    """Return the max-min fair share of `cores` for a loader that wants `wanted`, when the others want `others`."""
    wishes = sorted([wanted, *others])
    for number, wish in enumerate(wishes):
        level = cores / (len(wishes) - number)
        if wish > level:
            return min(wanted, level)
        cores -= wish
    return wanted


class Budget:
    """One loader's share of the `cores` of its node, which all loaders together have. `claim` makes the claim on them
    when first used; None if no other loader shares them. All processes of the node must have the same `clock`."""

    def __init__(
        self,
        cores: float,
        claim: Callable[[], Claim] | None = lambda: Claim(_NAME),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cores = cores
        self._make_claim, self._clock = claim, clock
        self._lock = threading.Lock()  # the program may close() in another thread
        self._claim: Claim | None = None
        self._is_alone = claim is None
        self._renewed = -math.inf
        self._granted = 1
        self._last = 1, 1.0, 0.0
        self.is_settled = False  # whether a request was decided: another program may have been deciding each time

    @property
    def is_due(self) -> bool:
        """Whether renew() should be called now."""
        return self._clock() - self._renewed >= _RENEWAL_S

    def renew(self) -> int:
        """Repeat the last request, and return the number of workers that are granted now."""
        return self.ask(*self._last)

    def ask(self, wanted: int, share: float, interval: float) -> int:
        """Request cores, and return the number of workers that is granted, at least one."""
        with self._lock:
            self._last, self._renewed = (wanted, share, interval), self._clock()
            try:
                if not self._is_alone and self._make_claim is not None:
                    self._claim = self._claim or self._make_claim()
                    self.is_settled = self._claim.settle(self._decide) or self.is_settled
                    return min(wanted, self._granted)
            except (OSError, RunEndedError, ValueError) as error:
                self._is_alone = True
                _log.warning(
                    "this loader shares the cores of the node with no other one, as it cannot claim any: %s", error
                )
            return _workers(wanted, share, self.cores)

    def _decide(self, others: list[bytes]) -> bytes:
        wanted, share, interval = self._last
        leases = [msgspec.json.decode(other, type=Lease) for other in others]
        leases = [lease for lease in leases if lease.until > self._renewed]
        fair = fair_share(_cores(wanted, share), [lease.wanted for lease in leases], self.cores)
        free = self.cores - sum(lease.held for lease in leases)
        self._granted = _workers(wanted, share, min(fair, free))
        until = self._renewed + _LEASE_S + 10 * interval
        return msgspec.json.encode(Lease(_cores(wanted, share), _cores(self._granted, share), until))

    def close(self) -> None:
        with self._lock:
            self._is_alone = True
            if self._claim is not None:
                self._claim.close()


def _cores(workers: int, share: float) -> float:
    """Return the cores that `workers` need when each computes for a fraction `share` of its time: their mean less a
    part of the deviation, sqrt(n q (1 - q)), as with the mean alone some cores would often be idle."""
    share = max(_LEAST_SHARE, share)
    return workers * share - _VARIATION * math.sqrt(workers * share * max(0.0, 1 - share))


def _workers(wanted: int, share: float, cores: float) -> int:
    """Return the largest number of workers, from 1 to `wanted`, that needs at most `cores`."""
    fitting = 1
    while fitting < wanted and _cores(fitting + 1, share) <= cores + _ROUNDING * share:
        fitting += 1
    return fitting
