"""What an allocation of loading workers is made from, and what it must obey."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torchloader.prediction.curve import Curve

__all__ = ["Allocation", "Demand", "Policy", "used"]

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
    """

    name: str
    devices: Mapping[str, int]
    curve: Curve
    weight: float = 1.0
    minimum: int = 1
    maximum: int | None = None
    requested: int = 1
    arrival: float = 0.0

    @property
    def size(self) -> int:
        """Its devices on all nodes."""
        return sum(self.devices.values())


class Policy(Protocol):
    """A way to share the cores of each node among jobs. Equal demands and cores give equal allocations."""

    name: str

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        """Workers per device for every job; `cores` are those for loading, by node."""


def used(demands: Sequence[Demand], allocation: Mapping[str, int]) -> dict[str, int]:
    """Cores that an allocation takes on each node."""
    found: dict[str, int] = {}
    for demand in demands:
        for node, devices in demand.devices.items():
            found[node] = found.get(node, 0) + devices * allocation.get(demand.name, 0)
    return found
