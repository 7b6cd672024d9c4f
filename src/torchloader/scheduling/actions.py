"""What the scheduler tells the master to do."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from torchloader.scheduling.spreading import Away

__all__ = ["Action", "Cause", "Launch", "Mode", "Node", "Pause", "Promote", "Requeue", "Resize", "Resume"]


class Mode(enum.IntEnum):
    """When workers of running applications are reallocated."""

    NEVER = 1
    ARRIVALS = 2
    ARRIVALS_AND_DEPARTURES = 3


class Cause(enum.StrEnum):
    """Why the scheduler is asked."""

    ARRIVAL = "arrival"
    DEPARTURE = "departure"
    DRIFT = "drift"  # what was measured of an application has changed
    LOST = "node lost"
    DUE = "due"  # applications that had been moved too lately can be moved again


@dataclass(frozen=True, slots=True)
class Node:
    """What a node has.

    Args:
        cores: for loading workers.
        devices: the indexes of its devices.
    """

    cores: int
    devices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """Start an application that is queued: on these devices, with so many workers for each.

    Of the workers for the devices on a node, `away` tells how many are on which other ones.
    """

    name: str
    placement: dict[str, tuple[int, ...]]
    workers: int
    reason: str
    away: Away = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with an application that is paused, on these devices, which may be others than before."""

    name: str
    placement: dict[str, tuple[int, ...]]
    workers: int
    reason: str
    away: Away = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resize:
    """Change the workers per device of a running application, or only where they are."""

    name: str
    before: int
    workers: int
    reason: str
    away: Away = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop an application that the nodes have no cores for any more, or that yields its devices, to be resumed
    later."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Requeue:
    """An application was on a node that is lost: it waits again, and goes on from its last checkpoint."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Promote:
    """An application waited for too long: count the time for which it held devices from 0 again."""

    name: str
    reason: str


Action = Requeue | Promote | Pause | Resize | Launch | Resume
