"""Orders of applications: which of them hold devices where not all can. How cores are shared is another matter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torchloader.scheduling.application import Application
from torchloader.scheduling.gavel import Gavel
from torchloader.scheduling.states import State

__all__ = ["ARRIVAL", "ORDERS", "Arrival", "Order", "ShortestFirst", "Tiresias", "order"]

_CLOSE = 1e-6  # seconds, or device seconds: what is nearer than that to a bound has come to it


class Order(Protocol):
    """An order in which applications are served with devices. Equal arguments give equal answers."""

    @property
    def name(self) -> str:
        """What users choose it by."""

    @property
    def preempts(self) -> bool:
        """Whether those who run give their devices up to those who wait and come before them."""

    def ranked(self, now: float, applications: Iterable[Application], devices: int) -> list[Application]:
        """Those that run or wait, the one that is served first at the front; `devices` are those of all nodes."""

    def yields(self, now: float, application: Application) -> bool:
        """Whether one that runs may have to give its devices up now; asked only of orders that preempt."""

    def starved(self, now: float, waiting: Iterable[Application]) -> list[Application]:
        """Those that waited for so long that they are to be served as if they had only come."""

    def next_time(self, now: float, applications: Sequence[Application]) -> float | None:
        """When, after now, the order changes although nothing happens; None for never."""


def _came(application: Application) -> tuple[float, str]:
    return application.spec.arrival, application.spec.name


@dataclass(frozen=True, slots=True)
class Arrival:
    """Whoever came first is served first, and keeps its devices to its end."""

    name: str = "arrival"
    preempts: bool = False

    def ranked(self, now: float, applications: Iterable[Application], devices: int) -> list[Application]:
        """By arrival; names decide between those that came together."""
        return sorted(applications, key=_came)

    def yields(self, now: float, application: Application) -> bool:
        """Nobody does."""
        return False

    def starved(self, now: float, waiting: Iterable[Application]) -> list[Application]:
        """Nobody, as nobody is passed over."""
        return []

    def next_time(self, now: float, applications: Sequence[Application]) -> float | None:
        """Never: only arrivals and departures change it."""
        return None


@dataclass(frozen=True, slots=True)
class ShortestFirst:
    """Shortest remaining time first (SRTF), by what an application would take if it never waited for data.

    It knows how long jobs go on, as the other orders do not: a bound for them, and not fair to long jobs. One whose
    throughput is not known yet comes first, so that it is measured.
    """

    name: str = "srtf"
    preempts: bool = True

    def yields(self, now: float, application: Application) -> bool:
        """Whoever has more left than one that waits."""
        return True

    def ranked(self, now: float, applications: Iterable[Application], devices: int) -> list[Application]:
        """By what is left of them, in seconds."""

        def seconds(each: Application) -> float:
            return each.left / (each.spec.size * each.curve.ceiling) if each.curve is not None else 0.0

        return sorted(applications, key=lambda each: (seconds(each), *_came(each)))

    def starved(self, now: float, waiting: Iterable[Application]) -> list[Application]:
        """Nobody: long applications have to wait."""
        return []

    def next_time(self, now: float, applications: Sequence[Application]) -> float | None:
        """Never: what is left is looked at when something happens."""
        return None


@dataclass(frozen=True, slots=True)
class Tiresias:
    """Discretised two-dimensional least attained service, of which nothing need be known beforehand.

    An application begins in the first queue and comes to the next when the service that it attained, its devices times
    the seconds for which it held them, reaches a threshold. Earlier queues are served first; within one those that
    started first, and those that never started last, so that there nobody preempts another for being new. Whoever has
    waited `promote` times as long as it ran comes back to the first queue, and its service counts from 0 again.

    Tiresias: A GPU Cluster Manager for Distributed Deep Learning, NSDI 2019, section 3 (2D-LAS, discretised priorities,
    PROMOTEKNOB). Its placement by the skew of models is not here.

    Args:
        thresholds: device seconds, rising, at which an application comes to the next queue.
        promote: the paper's PROMOTEKNOB; infinite for never.

    Raises ValueError for thresholds that do not rise from above 0, and for a factor that is not positive.
    """

    thresholds: tuple[float, ...] = (3600.0,)
    promote: float = 8.0
    name: str = "tiresias"
    preempts: bool = True

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in zip((0.0, *self.thresholds), self.thresholds, strict=False))
        if not rising:
            raise ValueError(f"thresholds of queues must rise from above 0, not {self.thresholds}")
        if not self.promote > 0:
            raise ValueError(f"the factor of promotion must be positive, not {self.promote}")

    def _queue(self, now: float, application: Application) -> int:
        service = application.service(now)
        return sum(threshold <= service + _CLOSE for threshold in self.thresholds)

    def yields(self, now: float, application: Application) -> bool:
        """At any time, to an earlier queue or an earlier start."""
        return True

    def ranked(self, now: float, applications: Iterable[Application], devices: int) -> list[Application]:
        """By queue, and in one by when they started."""

        def rank(each: Application) -> tuple[int, float, float, str]:
            return self._queue(now, each), math.inf if each.began is None else each.began, *_came(each)

        return sorted(applications, key=rank)

    def _starves_at(self, now: float, application: Application) -> float:
        """When an application that waits is promoted; never while it is in the first queue."""
        if self._queue(now, application) == 0:
            return math.inf
        return application.since + self.promote * application.executed

    def starved(self, now: float, waiting: Iterable[Application]) -> list[Application]:
        """Those that waited so many times as long as they ran."""
        return [each for each in waiting if self._starves_at(now, each) <= now + _CLOSE]

    def next_time(self, now: float, applications: Sequence[Application]) -> float | None:
        """When one that runs comes to the next queue, or one that waits is to be promoted."""
        waiting = [each for each in applications if each.waits]
        if not waiting:
            return None  # who runs goes on, in whichever queue it is
        times = [self._starves_at(now, each) for each in waiting]
        for each in applications:
            if each.state is State.RUNNING:
                left = [bound - each.service(now) for bound in self.thresholds]
                times += [now + more / each.spec.size for more in left if more > _CLOSE][:1]
        later = [time for time in times if now + _CLOSE < time < math.inf]
        return min(later, default=None)


ARRIVAL = Arrival()
_ALL: tuple[Order, ...] = (ARRIVAL, ShortestFirst(), Tiresias(), Gavel())
ORDERS: dict[str, Order] = {each.name: each for each in _ALL}
"""All of them by name, with the numbers that they have by default."""


def order(name: str) -> Order:
    """The order of that name. Raises ValueError, with the names that there are, for another."""
    if name not in ORDERS:
        raise ValueError(f"there is no order {name!r}; the orders are {', '.join(ORDERS)}")
    return ORDERS[name]
