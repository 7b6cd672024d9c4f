"""The scheduler's record of an application."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torchloader.prediction.curve import Curve

# Of the workers for an application's devices on a node: how many are on which other nodes.
Away = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Need:
    """The workers for the devices that an application has on one node."""

    name: str  # the name of the application
    node: str  # the node of the devices
    workers: int  # the number of workers for all devices there
    least: int  # how many of them must run on that node
    before: Mapping[str, int] = field(default_factory=dict)  # how many now run on which other nodes
    fixed: bool = False  # whether they stay where they are


def spread(needs: Sequence[Need], cores: Mapping[str, int]) -> dict[str, dict[str, dict[str, int]]]:
    """Return `Away` for each application. Workers run on the node of their devices while it has cores, those of earlier
    needs first; the others where they are if possible, else on the nodes with the most free cores."""
    free = dict(cores)
    rest: dict[int, int] = {}
    away: dict[str, dict[str, dict[str, int]]] = {need.name: {} for need in needs}
    for need in needs:
        there = sum(need.before.values()) if need.fixed else 0
        free[need.node] = free.get(need.node, 0) - (need.workers - there if need.fixed else need.least)
        for node, workers in need.before.items() if need.fixed else ():
            free[node] = free.get(node, 0) - workers
        if there:
            away[need.name][need.node] = dict(need.before)
    for place, need in enumerate(needs):
        if not need.fixed:
            more = need.workers - need.least
            here = min(more, max(0, free[need.node]))
            free[need.node] -= here
            rest[place] = more - here
    for place, more in rest.items():
        found = _elsewhere(more, needs[place], free)
        if found:
            away[needs[place].name][needs[place].node] = found
    return away


def names(away: Away, node: str) -> tuple[str, ...]:
    """Return the node of each worker for the devices on `node` that runs on another one."""
    return tuple(other for other, workers in sorted(away.get(node, {}).items()) for _ in range(workers))


def _elsewhere(workers: int, need: Need, free: dict[str, int]) -> dict[str, int]:
    """Return where `workers` of a need run, and take their cores from `free`."""
    found: dict[str, int] = {}
    kept = [node for node in need.before if node != need.node and free.get(node, 0) > 0]
    others = sorted((node for node in free if node != need.node), key=lambda node: (-free[node], node))
    for most, nodes in ((need.before, kept), (free.copy(), others)):
        for node in nodes:
            taken = min(workers, free[node], most[node])
            if taken > 0:
                found[node] = found.get(node, 0) + taken
                free[node] -= taken
                workers -= taken
    return found


class State(enum.StrEnum):
    """The state of an application."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    RESIZING = "resizing"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESUMING = "resuming"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({State.FINISHED, State.FAILED, State.CANCELLED})

TRANSITIONS: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.STARTING, State.FAILED, State.CANCELLED}),
    State.STARTING: frozenset({State.RUNNING, State.PAUSING, State.QUEUED, *ENDED}),
    State.RUNNING: frozenset({State.RESIZING, State.PAUSING, State.QUEUED, *ENDED}),
    State.RESIZING: frozenset({State.RUNNING, State.PAUSING, State.QUEUED, *ENDED}),
    State.PAUSING: frozenset({State.PAUSED, State.QUEUED, *ENDED}),
    State.PAUSED: frozenset({State.RESUMING, State.FAILED, State.CANCELLED}),
    State.RESUMING: frozenset({State.RUNNING, State.PAUSING, State.QUEUED, *ENDED}),
    **dict.fromkeys(ENDED, frozenset[State]()),
}

# In which an application holds devices and cores.
HOLDING = frozenset({State.STARTING, State.RUNNING, State.RESIZING, State.PAUSING, State.RESUMING})

# The indexes of devices, by the node's name.
Placement = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Spec:
    """A submitted application."""

    name: str  # the unique name of the application
    arch: str  # the architecture of the model
    devices: dict[str, tuple[int, ...]] | int  # the devices to train on, by node; or the number of devices to find
    batch: int  # samples per iteration, over all devices
    iterations: int  # the number of iterations to train
    workers: int = 1  # loading workers that were requested, over all devices
    weight: float = 1.0  # the relative importance of its progress
    minimum: int = 1  # workers per device that it accepts
    maximum: int | None = None
    arrival: float = 0.0  # when it was submitted, in seconds
    settings: dict[str, str | int | float | bool | None] = field(default_factory=dict)  # of the training program
    # How fast a device of each kind computes, relative to its curve. It runs only on these kinds, and on devices of
    # unknown kind (""), whose speed is 1. If none is named, it runs equally fast on all.
    speeds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, number in (("devices", self.size), ("batch", self.batch), ("iterations", self.iterations)):
            if number < 1:
                raise ValueError(f"application {self.name!r}: {what} must be at least 1, not {number}")
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise ValueError(f"application {self.name!r}: weight must be positive, not {self.weight}")
        if self.minimum < 1 or (self.maximum is not None and self.maximum < self.minimum):
            raise ValueError(
                f"application {self.name!r}: minimum must be at least 1, and maximum no less, not {self.minimum} and "
                f"{self.maximum}"
            )
        for kind, speed in self.speeds.items():
            if not (math.isfinite(speed) and speed > 0):
                raise ValueError(
                    f"application {self.name!r}: its speed on {kind!r} must be positive, not {speed}; leave out the "
                    "kinds that it cannot run on"
                )

    def runs_on(self, kind: str) -> bool:
        """Return whether it can run on devices of that kind."""
        return not self.speeds or not kind or kind in self.speeds

    def speed(self, kind: str) -> float:
        """Return how fast a device of that kind computes, relative to its curve."""
        return self.speeds[kind] if self.speeds and kind else 1.0

    @property
    def size(self) -> int:
        return self.devices if isinstance(self.devices, int) else sum(map(len, self.devices.values()))

    @property
    def requested(self) -> int:
        """The requested workers per device, at least one."""
        return max(1, self.workers // self.size)


def cores_of(placement: Placement, workers: int, away: Away) -> dict[str, int]:
    """Return the cores that `workers` for each device of a placement take, by node."""
    found = {node: len(devices) * workers for node, devices in placement.items()}
    for home, others in away.items():
        for node, number in others.items():
            found[home] -= number
            found[node] = found.get(node, 0) + number
    return found


@dataclass(frozen=True, slots=True)
class Application:
    """The state of an application."""

    spec: Spec  # what was submitted
    state: State = State.QUEUED  # its present state
    since: float = 0.0  # when it entered that state, in seconds
    curve: Curve | None = None  # the speed of one device of speed 1 that it does not share; None if unknown
    workers: int = 0  # present workers per device
    placement: dict[str, tuple[int, ...]] = field(default_factory=dict)  # the devices that it holds
    away: dict[str, dict[str, int]] = field(default_factory=dict)  # of its workers: see `Away`
    moved: float | None = None  # when its workers were last changed, in seconds; None for never
    progress: float = 0.0  # completed iterations
    held: bool = False  # whether a user paused it, so that the scheduler does not resume it
    cost: float | None = None  # seconds of training that a change of its workers costs; None if it was not measured
    starts: int = 0  # how often its ranks were started, including after pauses
    began: float | None = None  # when it was first started, in seconds
    placed: float | None = None  # and last
    executed: float = 0.0  # seconds for which it held devices before its present state, since it was last promoted
    kind: str = ""  # the kind of the devices that it holds, or held last
    executed_on: dict[str, float] = field(default_factory=dict)  # the same by kind of devices
    most: int = 0  # the largest number of devices that it held

    @property
    def size(self) -> int:
        """The number of devices that it holds, or, while it holds none, of those that it was submitted for."""
        return sum(map(len, self.placement.values())) or self.spec.size

    def expected(self, kind: str) -> Curve:
        """Return its curve on a device of that kind; while unknown, one for which the requested workers just
        suffice."""
        return self.curve.scaled(self.spec.speed(kind)) if self.curve else Curve(1.0, float(self.spec.requested))

    @property
    def cores(self) -> dict[str, int]:
        return cores_of(self.placement, self.workers, self.away)

    def needs(self, placement: Placement, workers: int, fixed: bool = False) -> list[Need]:
        """Return where its workers may run, with `workers` for each device; with `fixed` they stay on their nodes."""
        least = min(workers, self.spec.minimum)
        return [
            Need(self.spec.name, node, workers * len(devices), least * len(devices), self.away.get(node, {}), fixed)
            for node, devices in placement.items()
        ]

    def moved_to(self, away: Away) -> dict[str, Away]:
        """Return the details of an event that moves its workers; empty if they stay."""
        return {} if away == self.away else {"away": away}

    @property
    def holds(self) -> bool:
        return self.state in HOLDING

    @property
    def waits(self) -> bool:
        """Whether it is to be started, or resumed, as soon as there are resources."""
        return self.state is State.QUEUED or (self.state is State.PAUSED and not self.held)

    def service(self, now: float) -> float:
        """Return the device seconds that it has attained: its devices times the seconds for which it held them."""
        return self.spec.size * (self.executed + (now - self.since if self.holds else 0.0))

    def seconds_on(self, kind: str, now: float) -> float:
        """Return the seconds for which it has held devices of a named kind."""
        return self.executed_on.get(kind, 0.0) + (now - self.since if self.holds and kind == self.kind else 0.0)

    @property
    def left(self) -> float:
        """Samples that it still has to train on, over all its devices."""
        return max(0.0, self.spec.iterations - self.progress) * self.spec.batch


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
    """The resources of a node."""

    cores: int  # the number of cores for loading workers
    devices: tuple[int, ...]  # the indexes of its devices
    lent: int = 0  # cores that workers of other programs use; applications get their minimum all the same
    kind: str = ""  # the kind of its devices, such as "v100"; "" if it is not known, or all nodes have the same


@dataclass(frozen=True, slots=True)
class Launch:
    """Start or resume an application on these devices, which are of a `kind`, with `workers` for each."""

    name: str
    placement: dict[str, tuple[int, ...]]
    workers: int
    reason: str
    away: Away = field(default_factory=dict)
    kind: str = ""
    state: State = State.STARTING  # that it enters; RESUMING for a paused one

    def details(self, record: Application) -> dict[str, object]:
        kind = {} if self.kind == record.kind else {"kind": self.kind}
        return {"workers": self.workers, "placement": self.placement, **kind, **record.moved_to(self.away)}


@dataclass(frozen=True, slots=True)
class Resize:
    """Change the workers per device of a running application, or only the nodes that they run on."""

    name: str
    before: int
    workers: int
    reason: str
    away: Away = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Named:
    name: str
    reason: str


class Pause(_Named):
    """Stop an application, to be resumed later: there are no cores for it any more, or it yields its devices."""


class Requeue(_Named):
    """Queue an application again whose node is lost. It will continue from its last checkpoint."""


class Promote(_Named):
    """Reset the time for which an application held devices to 0, because it waited too long."""


Action = Requeue | Promote | Pause | Resize | Launch
