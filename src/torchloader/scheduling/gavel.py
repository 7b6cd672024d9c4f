"""Equal parts of the cluster's time, in rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchloader.scheduling.application import Application

__all__ = ["Gavel", "portions"]

_CLOSE_S = 1e-6  # seconds


def portions(sizes: Sequence[int], weights: Sequence[float], devices: int) -> list[float]:
    """Return the part of its time for which each application is to hold its devices.

    The device time of each is as near to its weight's part of the whole as can be: what some cannot use, as they never
    hold more devices than they have, goes to the others, so that the smallest is as large as possible (water-filling).

    Args:
        sizes: devices of each application.
        weights: of each, positive.
        devices: that there are, at least one.
    """
    left, weight = float(devices), math.fsum(weights)
    level = math.inf
    for size, each in sorted(zip(sizes, weights, strict=True), key=lambda pair: pair[0] / pair[1]):
        if size / each * weight > left:
            level = left / weight
            break
        left, weight = left - size, weight - each
    return [min(1.0, level * each / size) for size, each in zip(sizes, weights, strict=True)]


@dataclass(frozen=True, slots=True)
class Gavel:
    """Max-min fair parts of time, as Gavel's least-attained-service policy comes to on devices of one kind.

    Each application has a part of the time due to it (`portions`). Whoever has had the least of its part is served
    first, and who was served gives its devices up at the end of a round at the earliest.

    Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads, OSDI 2020 (Gavel): section 4.1 for the
    policy, section 5 for rounds, in which the priority of a job is the part of time due to it, divided by that which it
    had. What the paper is about, jobs that gain more than others from a faster kind of device, is not here: nodes have
    devices of one kind. Nor do several jobs share a device.

    Args:
        seconds: of a round; the paper's are 360.

    Raises ValueError for a length that is not positive.
    """

    seconds: float = 360.0
    name: str = "gavel"
    preempts: bool = True

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"a round must take some seconds, not {self.seconds}")

    def ranked(self, now: float, applications: Iterable[Application], devices: int) -> list[Application]:
        """By the part of the time that each had, as a part of what is due to it."""
        everybody = list(applications)
        sizes, weights = [each.spec.size for each in everybody], [each.spec.weight for each in everybody]
        due = portions(sizes, weights, max(1, devices))  # nodes may not have joined yet

        def rank(place: int) -> tuple[float, float, str]:
            spec = everybody[place].spec
            age = max(now - spec.arrival, _CLOSE_S)
            had = everybody[place].service(now) / spec.size / age
            return had / due[place], spec.arrival, spec.name

        return [everybody[place] for place in sorted(range(len(everybody)), key=rank)]

    def yields(self, now: float, application: Application) -> bool:
        """Whoever started before this round."""
        began = math.floor((now + _CLOSE_S) / self.seconds) * self.seconds
        return application.placed is None or application.placed < began - _CLOSE_S

    def starved(self, now: float, waiting: Iterable[Application]) -> list[Application]:
        """Nobody: whoever waits comes nearer to the front."""
        return []

    def next_time(self, now: float, applications: Sequence[Application]) -> float | None:
        """At the end of the round, if somebody waits."""
        if not any(each.waits for each in applications):
            return None
        return (math.floor((now + _CLOSE_S) / self.seconds) + 1) * self.seconds
