"""An order that gives applications equal parts of the cluster's time, in rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchloader.scheduling.application import Application, Node
from torchloader.scheduling.placement import Turn, devices_by_kind
from torchloader_papers.fractions import Claim, fractions

__all__ = ["AGNOSTIC", "GAVEL", "Gavel", "portions"]

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
    """Max-min fair parts of time, in rounds: Gavel's least-attained-service policy.

    Each application is due a part of the time, on each kind of devices. The one with the least of its due part is
    served first, and keeps its devices at least until the end of the round. An application whose turn comes on another
    kind than it holds is moved there.

    On devices of several kinds it is due the parts with which the worst served application makes as much progress as
    possible, relative to what it would make with an equal part of every device (`fractions`). So the faster kinds go to
    those that gain most by them. If it is not `aware` of speeds, or there is only one kind, all devices count the same
    (`portions`), and it is due an equal part of the time of each kind on which it can run.

    Heterogeneity-Aware Cluster Scheduling Policies for Deep Learning Workloads, OSDI 2020 (Gavel): section 4.1 for the
    policy, section 5 for rounds, in which the priority of a job on a kind is its due part of time divided by the part
    that it had. An application gets devices that would be idle even if it is due none. Not implemented is that several
    jobs share a device.

    Args:
        seconds: the length of a round; 360 in the paper.
        aware: whether it uses the speeds of applications on each kind.
        name: the name for users.

    Raises ValueError for a length that is not positive.
    """

    seconds: float = 360.0
    aware: bool = True
    name: str = "gavel"
    preempts: bool = True

    def __post_init__(self) -> None:
        if not self.seconds > 0:
            raise ValueError(f"a round must take some seconds, not {self.seconds}")

    def ranked(self, now: float, applications: Iterable[Application], nodes: Mapping[str, Node]) -> list[Turn]:
        """Order the turns of applications by the part of time that each had, relative to what it is due."""
        everybody = list(applications)
        devices = devices_by_kind(nodes)
        several = len(devices) > 1
        ranks: list[tuple[tuple[float, float, float, str, float], Turn]] = []
        for each, parts in zip(everybody, self._due(everybody, devices), strict=True):
            spec, age = each.spec, max(now - each.spec.arrival, _CLOSE_S)
            for kind, part in parts.items():
                had = each.seconds_on(kind, now) if several else each.service(now) / spec.size
                rank = had / age / part if part else math.inf
                # Of kinds on which none was served yet, the one of which more is due.
                more, speed = part if several else 0.0, spec.speed(kind) if self.aware else 1.0
                ranks.append(((rank, -more, spec.arrival, spec.name, -speed), Turn(each, ((kind,),))))
        return [turn for _, turn in sorted(ranks, key=lambda pair: pair[0])]

    def _due(self, everybody: Sequence[Application], devices: Mapping[str, int]) -> list[dict[str, float]]:
        """Return the part of the time that each application is due on each kind."""
        specs = [each.spec for each in everybody]
        if self.aware and len(devices) > 1:
            speeds = [[spec.speed(kind) if spec.runs_on(kind) else 0.0 for kind in devices] for spec in specs]
            claims = [Claim(spec.size, spec.weight, tuple(own)) for spec, own in zip(specs, speeds, strict=True)]
            found = zip(specs, fractions(claims, list(devices.values())), strict=True)
            return [
                {kind: part for kind, part in zip(devices, parts, strict=True) if spec.runs_on(kind)}
                for spec, parts in found
            ]
        whole = max(1, sum(devices.values()))  # nodes may not have joined yet
        due = []
        for spec, part in zip(specs, portions([s.size for s in specs], [s.weight for s in specs], whole), strict=True):
            there = {kind: count for kind, count in devices.items() if spec.runs_on(kind)}
            able = max(1, sum(there.values()))
            due.append({kind: part * count / able for kind, count in there.items()})
        return due

    def yields(self, now: float, application: Application) -> bool:
        """Return whether the application started before this round."""
        began = math.floor((now + _CLOSE_S) / self.seconds) * self.seconds
        return application.placed is None or application.placed < began - _CLOSE_S

    def starved(self, now: float, waiting: Iterable[Application]) -> list[Application]:
        """Return no application, as the rank of waiting ones rises steadily."""
        return []

    def next_time(self, now: float, applications: Sequence[Application], kinds: int = 1) -> float | None:
        """Return the end of the round if an application waits, or may have its turn on another kind."""
        if not any(each.waits or (each.holds and kinds > 1) for each in applications):
            return None
        return (math.floor((now + _CLOSE_S) / self.seconds) + 1) * self.seconds


GAVEL = Gavel()
AGNOSTIC = Gavel(aware=False, name="gavel-agnostic")
