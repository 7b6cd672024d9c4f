"""Orders of applications: which hold devices when there are not enough for all. Sharing of cores is separate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol

from torchloader.allocation.catalogue import added
from torchloader.scheduling.application import Application, Node, State
from torchloader.scheduling.placement import Turn, devices_by_kind, turns

_CLOSE = 1e-6  # seconds, or device seconds: tolerance at which a bound counts as reached


class Order(Protocol):
    """An order in which applications get devices. Equal arguments give equal results."""

    @property
    def name(self) -> str:
        """The name of the order for users."""

    @property
    def preempts(self) -> bool:
        """Whether running applications yield their devices to waiting ones that precede them."""

    def ranked(self, now: float, applications: Iterable[Application], nodes: Mapping[str, Node]) -> list[Turn]:
        """Return the turns of the running and waiting applications, the first to be served first."""

    def yields(self, now: float, application: Application) -> bool:
        """Return whether a running application may have to yield its devices now. Only called if the order preempts."""
        return True

    def starved(self, now: float, waiting: Iterable[Application]) -> list[Application]:
        """Return those that waited so long that they are to be promoted."""
        return []

    def next_time(self, now: float, applications: Sequence[Application], kinds: int = 1) -> float | None:
        """Return when, after `now`, the order changes without an event; None for never."""
        return None


def _came(application: Application) -> tuple[float, str]:
    return application.spec.arrival, application.spec.name


@dataclass(frozen=True, slots=True)
class Arrival(Order):
    """First come, first served; applications keep their devices to the end."""

    name: str = "arrival"
    preempts: bool = False

    def ranked(self, now: float, applications: Iterable[Application], nodes: Mapping[str, Node]) -> list[Turn]:
        return turns(sorted(applications, key=_came), nodes)


@dataclass(frozen=True, slots=True)
class ShortestFirst(Order):
    """Shortest remaining time first (SRTF), by the time that an application would take if it never waited for data.
    Unlike the other orders it uses the length of jobs: it is a bound for them, and not fair to long jobs. The time is
    that on the fastest kind of devices in the cluster, on whichever it runs. An application of unknown throughput comes
    first, so that it is measured."""

    name: str = "srtf"
    preempts: bool = True

    def ranked(self, now: float, applications: Iterable[Application], nodes: Mapping[str, Node]) -> list[Turn]:
        kinds = devices_by_kind(nodes)

        def seconds(each: Application) -> float:
            if each.curve is None:
                return 0.0
            speed = max((each.spec.speed(kind) for kind in kinds if each.spec.runs_on(kind)), default=1.0)
            return each.left / (each.spec.size * each.curve.ceiling * speed)

        return turns(sorted(applications, key=lambda each: (seconds(each), *_came(each))), nodes)


@dataclass(frozen=True, slots=True)
class Tiresias(Order):
    """Discretized two-dimensional least attained service, which needs no prior knowledge. An application begins in the
    first queue and moves to the next when its attained service (its devices times the seconds for which it held them)
    reaches a threshold. Earlier queues are served first; within a queue those that started first, and those that never
    started last, so that a new application does not preempt another of its queue. An application that has waited
    `promote` times as long as it ran returns to the first queue, and its service counts from 0 again. Tiresias: A GPU
    Cluster Manager for Distributed Deep Learning, NSDI 2019, section 3 (2D-LAS, discretized priorities, PROMOTEKNOB).
    Its placement by the skew of models is not implemented."""

    thresholds: tuple[float, ...] = (3600.0,)  # device seconds at which an application moves to the next queue
    promote: float = 8.0  # the paper's PROMOTEKNOB; infinite for never
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

    def ranked(self, now: float, applications: Iterable[Application], nodes: Mapping[str, Node]) -> list[Turn]:
        def rank(each: Application) -> tuple[int, float, float, str]:
            return self._queue(now, each), math.inf if each.began is None else each.began, *_came(each)

        return turns(sorted(applications, key=rank), nodes)

    def _starves_at(self, now: float, application: Application) -> float:
        """Return when a waiting application is promoted; infinity for the first queue."""
        if self._queue(now, application) == 0:
            return math.inf
        return application.since + self.promote * application.executed

    def starved(self, now: float, waiting: Iterable[Application]) -> list[Application]:
        """Return those that waited `promote` times as long as they ran."""
        return [each for each in waiting if self._starves_at(now, each) <= now + _CLOSE]

    def next_time(self, now: float, applications: Sequence[Application], kinds: int = 1) -> float | None:
        waiting = [each for each in applications if each.waits]
        if not waiting:
            return None  # running applications continue in any queue
        times = [self._starves_at(now, each) for each in waiting]
        for each in applications:
            if each.state is State.RUNNING:
                left = [bound - each.service(now) for bound in self.thresholds]
                times += [now + more / each.spec.size for more in left if more > _CLOSE][:1]
        later = [time for time in times if now + _CLOSE < time < math.inf]
        return min(later, default=None)


ARRIVAL = Arrival()
_ALL: tuple[Order, ...] = (ARRIVAL, ShortestFirst(), Tiresias())
ORDERS: dict[str, Order] = {each.name: each for each in _ALL}
"""All orders by name, with their default parameters."""


_GROUP = "torchloader.orders"


def orders() -> list[str]:
    """Return the names of all orders, those of installed packages last."""
    return list(dict.fromkeys([*ORDERS, *sorted(entry_points(group=_GROUP).names)]))


def order(name: str) -> Order:
    """Return the order of that name, of this package or of an installed one (`torchloader.orders`)."""
    return ORDERS[name] if name in ORDERS else added("order", _GROUP, name, ORDERS)
