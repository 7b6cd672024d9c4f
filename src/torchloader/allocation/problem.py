"""What an allocation of loading workers is made from, and what it must obey."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torchloader.prediction.curve import Curve

__all__ = ["Allocation", "Demand", "Policy", "by_arrival", "used"]

# Workers per device, by the name of the job.
Allocation = dict[str, int]


@dataclass(frozen=True, slots=True)
class Demand:
    """A job that wants loading workers.

    Args:
        name: of the job, unlike that of any other.
        devices: how many devices it has on each node, by the node's name.
        curve: how fast one of its devices trains.
        weight: what its progress is worth beside that of others.
        minimum, maximum: workers per device that it can do with; no upper bound by default.
        requested: workers per device that its submitter asked for.
        arrival: when it came, in seconds; earlier ones go first where a policy has to choose.
        remaining: samples that it still has to train on, over all its devices; unknown by default.

    Raises ValueError, with the job's name, for what cannot be: no device, a weight that is not positive, a minimum
    below one or above the maximum.
    """

    name: str
    devices: Mapping[str, int]
    curve: Curve
    weight: float = 1.0
    minimum: int = 1
    maximum: int | None = None
    requested: int = 1
    arrival: float = 0.0
    remaining: float | None = None

    def __post_init__(self) -> None:
        if not self.devices or min(self.devices.values()) < 1:
            raise ValueError(f"job {self.name!r}: it needs a device on each node that it names, not {self.devices}")
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise ValueError(f"job {self.name!r}: weight must be positive, not {self.weight}")
        if self.minimum < 1:
            raise ValueError(f"job {self.name!r}: minimum must be at least 1 worker per device, not {self.minimum}")
        if self.maximum is not None and self.maximum < self.minimum:
            raise ValueError(f"job {self.name!r}: maximum {self.maximum} is below minimum {self.minimum}")

    @property
    def size(self) -> int:
        """Its devices on all nodes."""
        return sum(self.devices.values())


class Policy(Protocol):
    """A way to share the cores of each node among jobs. Equal demands and cores give equal allocations."""

    @property
    def name(self) -> str:
        """What users choose it by."""

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        """Workers per device for every job; `cores` are those for loading, by node."""


def used(demands: Sequence[Demand], allocation: Mapping[str, int]) -> dict[str, int]:
    """Cores that an allocation takes on each node."""
    found: dict[str, int] = {}
    for demand in demands:
        for node, devices in demand.devices.items():
            found[node] = found.get(node, 0) + devices * allocation.get(demand.name, 0)
    return found


def by_arrival(demands: Sequence[Demand]) -> list[Demand]:
    """The order in which jobs are served where not all can be; names decide between those that came together."""
    return sorted(demands, key=lambda demand: (demand.arrival, demand.name))
