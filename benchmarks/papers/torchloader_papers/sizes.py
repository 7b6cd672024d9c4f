"""How many devices each application has: what a number of devices costs, by Pollux, by Sia and by Optimus."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from torchloader.scheduling.application import Application
from torchloader_papers.goodput import Profile, profile_of

__all__ = ["SIZES", "Optimus", "Option", "Pollux", "Sia", "Sizing"]

_HIGH = 1e9  # a cost above those of all allocations
_LEAST = 1e-3  # the smallest factor of a reallocation, so that no cost is infinite


@dataclass(frozen=True, slots=True)
class Option:
    """An allocation that an application may get.

    Args:
        devices: the number of devices.
        spread: whether they are on several nodes.
        moves: whether the application has to be restarted for it. The first start does not count.
    """

    devices: int
    spread: bool
    moves: bool


class Sizing(Protocol):
    """What allocations cost. Those are chosen of which the sum of costs is smallest."""

    @property
    def name(self) -> str:
        """The name for users."""

    @property
    def seconds(self) -> float:
        """The length of a round: allocations change only when one begins."""

    @property
    def unserved(self) -> float:
        """What it costs if an application gets no device. A cost above all others serves as many as possible."""

    @property
    def adapts(self) -> bool:
        """Whether the batch of an application is adapted to its allocation, for the highest goodput."""

    def limit(self, application: Application) -> int:
        """Return the largest number of devices that the application may get now."""

    def cost(self, now: float, application: Application, profile: Profile, option: Option, share: Option) -> float:
        """Return the cost of an allocation.

        Args:
            now: seconds, on the clock of the records.
            application: the record of the application.
            profile: its profile.
            option: the allocation.
            share: an equal share of the cluster.
        """


def _kept(now: float, application: Application, option: Option, delay: float) -> float:
    """Return the part of the time in which an application trains if it is restarted as often as before, and once more
    for this allocation: `(T - R·delay) / (T + delay)` if it started T seconds ago and was restarted R times."""
    if not option.moves or application.began is None:
        return 1.0
    age = now - application.began
    return max(_LEAST, (age - (application.starts - 1) * delay) / (age + delay))


@dataclass(frozen=True, slots=True)
class _InRounds:
    """What all sizings have.

    Args:
        delay: the seconds that a restart takes.
        seconds: the length of a round.
        unserved: what an application without devices costs, so that as many as possible have some.
    """

    delay: float = 30.0
    seconds: float = 60.0
    unserved: float = _HIGH


@dataclass(frozen=True, slots=True)
class Pollux(_InRounds):
    """The sizes of the highest fitness: the harmonic mean of all speedups.

    The speedup of an application is its goodput with an allocation, relative to that with an equal share of the
    cluster. If the application has to be restarted, it is multiplied by `(T - R·delay) / (T + delay)`, for an
    application that started T seconds ago and was restarted R times: the more often it was, the less it is again.

    Pollux: Co-adaptive Cluster Scheduling for Goodput-Optimized Deep Learning, OSDI 2021, section 4.2, with p = -1. The
    harmonic mean is largest where the sum of the inverse speedups is smallest, which are the costs here.
    """

    name: str = "pollux"
    adapts: bool = True

    def limit(self, application: Application) -> int:
        """Return twice the largest number of devices that it had: goodput with many more is not known yet (section
        4.1)."""
        return max(1, 2 * application.most)

    def cost(self, now: float, application: Application, profile: Profile, option: Option, share: Option) -> float:
        """Return the inverse speedup."""

        def goodput(each: Option) -> float:
            return profile.chosen(each.devices, each.spread, application.progress, adapts=True).goodput

        return goodput(share) / (goodput(option) * _kept(now, application, option, self.delay))


@dataclass(frozen=True, slots=True)
class Sia(_InRounds):
    """The sizes of the highest sum of goodputs, each relative to that on one device, to a power.

    Sia: Heterogeneity-aware, Goodput-optimized ML-cluster Scheduling, SOSP 2023, section 3, for devices of one kind,
    where its integer program over allocations is solved as exactly by dynamic programming. A negative power makes it a
    sum to minimize; an application without devices costs more than one with the least goodput. A round at most doubles
    the devices of an application. What is not here is its main subject, the choice among several kinds of devices.

    Args:
        unserved: the paper's lambda, what an application without devices costs.
        power: the paper's p, below 0.
    """

    unserved: float = 1.1
    power: float = -0.5
    name: str = "sia"
    adapts: bool = True

    def limit(self, application: Application) -> int:
        """Return twice the number of devices that it has, or one if it has none."""
        return 2 * application.size if application.holds else 1

    def cost(self, now: float, application: Application, profile: Profile, option: Option, share: Option) -> float:
        """Return the relative goodput to the power."""
        one = profile.chosen(1, False, application.progress, adapts=True).goodput
        many = profile.chosen(option.devices, option.spread, application.progress, adapts=True).goodput
        return math.pow(many / one * _kept(now, application, option, self.delay), self.power)


@dataclass(frozen=True, slots=True)
class Optimus(_InRounds):
    """The sizes of the smallest sum of remaining times, with the batch that each application was submitted with.

    It knows exactly how much each application still has to train (an oracle, as in the evaluation of Pollux). Optimus:
    An Efficient Dynamic Resource Scheduler for Deep Learning Clusters, EuroSys 2018, section 4.1, which adds devices
    one by one where they shorten the remaining time most. A restart costs `delay` seconds.
    """

    name: str = "optimus"
    adapts: bool = False

    def limit(self, application: Application) -> int:
        """Return no limit, but one sample of the batch for each device."""
        profile = profile_of(application.spec)
        return application.spec.size if profile is None else profile.fixed

    def cost(self, now: float, application: Application, profile: Profile, option: Option, share: Option) -> float:
        """Return the remaining seconds."""
        left = profile.seconds(option.devices, option.spread, application.progress)
        return left + (self.delay if option.moves else 0.0)


SIZES: Mapping[str, Callable[[float], Sizing]] = {"pollux": Pollux, "sia": Sia, "optimus": Optimus}
"""What makes each sizing, from the seconds that a restart takes, by its name."""
