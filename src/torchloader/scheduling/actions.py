"""The actions that the scheduler returns to the master."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from torchloader.scheduling.application import Away


class Mode(enum.IntEnum):
    """When workers of running applications are reallocated."""

    NEVER = 1
    ARRIVALS = 2
    ARRIVALS_AND_DEPARTURES = 3


class Cause(enum.StrEnum):
    """Why the scheduler is called."""

    ARRIVAL = "arrival"
    DEPARTURE = "departure"
    DRIFT = "drift"  # what was measured of an application has changed
    LOST = "node lost"
    LENT = "cores lent"  # other programs load on a node with more or fewer workers than before
    DUE = "due"  # applications that were changed recently can be changed again


@dataclass(frozen=True, slots=True)
class Node:
    """The resources of a node.

    Args:
        cores: the number of cores for loading workers.
        devices: the indexes of its devices.
        lent: how many of the cores loading workers of other programs use. Applications get their minimum all the same.
        kind: the kind of its devices, such as "v100"; "" if it is not known, or all nodes have the same.
    """

    cores: int
    devices: tuple[int, ...]
    lent: int = 0
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """Start a queued application on these devices, with `workers` for each device. `away` gives, for the workers of the
    devices on each node, how many of them run on which other nodes, and `kind` the kind of the devices."""

    name: str
    placement: dict[str, tuple[int, ...]]
    workers: int
    reason: str
    away: Away = field(default_factory=dict)
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Resume:
    """Resume a paused application on these devices, which may differ from those before."""

    name: str
    placement: dict[str, tuple[int, ...]]
    workers: int
    reason: str
    away: Away = field(default_factory=dict)
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Resize:
    """Change the workers per device of a running application, or only the nodes that they run on."""

    name: str
    before: int
    workers: int
    reason: str
    away: Away = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop an application, to be resumed later: there are no cores for it any more, or it yields its devices."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Requeue:
    """Queue an application again whose node is lost. It will continue from its last checkpoint."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Promote:
    """Reset the time for which an application held devices to 0, because it waited too long."""

    name: str
    reason: str


Action = Requeue | Promote | Pause | Resize | Launch | Resume
