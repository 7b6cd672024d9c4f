"""An order that gives applications equal parts of the cluster's time, in rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchloader.scheduling.actions import Node
from torchloader.scheduling.application import Application
from torchloader.scheduling.kinds import Turn, devices_by_kind, turns

__all__ = ["Gavel", "portions"]

_CLOSE_S = 1e-6  # seconds


def portions(sizes: Sequence[int], weights: Sequence[float], devices: int) -> list[float]:
    """Return the fraction of time for which each application should hold its devices.

    The device time of each is as close to its weighted part of the whole as possible. As an application never holds
    more devices than it has, the unused rest goes to the others, so that the smallest part is as large as possible
    (water-filling).

    Args:
        sizes: devices of each application.
        weights: the weight of each, positive.
        devices: the number of devices, at least one.
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
    """Max-min fair parts of time: Gavel's least-attained-service policy on devices of one kind.

    Each application is due a part of the time (`portions`). The one with the least of its due part is served first, and
    keeps its devices at least until the end of the round.

    Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads, OSDI 2020 (Gavel): section 4.1 for the
    policy, section 5 for rounds, in which the priority of a job is its due part of time divided by the part that it
    had. The main subject of the paper, jobs that gain more than others from a faster kind of device, is not
    implemented, as nodes have devices of one kind. Nor do several jobs share a device.

    Args:
        seconds: the length of a round; 360 in the paper.

    Raises ValueError for a length that is not positive.
    """

    seconds: float = 360.0
    name: str = "gavel"
    preempts: bool = True

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"a round must take some seconds, not {self.seconds}")

    def ranked(self, now: float, applications: Iterable[Application], nodes: Mapping[str, Node]) -> list[Turn]:
        """Order applications by the part of time that each had, relative to what it is due."""
        everybody = list(applications)
        sizes, weights = [each.spec.size for each in everybody], [each.spec.weight for each in everybody]
        due = portions(sizes, weights, max(1, sum(devices_by_kind(nodes).values())))  # nodes may not have joined yet

        def rank(place: int) -> tuple[float, float, str]:
            spec = everybody[place].spec
            age = max(now - spec.arrival, _CLOSE_S)
            had = everybody[place].service(now) / spec.size / age
            return had / due[place], spec.arrival, spec.name

        return turns((everybody[place] for place in sorted(range(len(everybody)), key=rank)), nodes)

    def yields(self, now: float, application: Application) -> bool:
        """Return whether the application started before this round."""
        began = math.floor((now + _CLOSE_S) / self.seconds) * self.seconds
        return application.placed is None or application.placed < began - _CLOSE_S

    def starved(self, now: float, waiting: Iterable[Application]) -> list[Application]:
        """Return no application, as the rank of waiting ones rises steadily."""
        return []

    def next_time(self, now: float, applications: Sequence[Application]) -> float | None:
        """Return the end of the round if an application waits."""
        if not any(each.waits for each in applications):
            return None
        return (math.floor((now + _CLOSE_S) / self.seconds) + 1) * self.seconds
