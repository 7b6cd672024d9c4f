"""Requests about telemetry."""

from __future__ import annotations

from dragon.infrastructure.metrics import Aggregate, Family, Kind, Lifetime, Line, NodeTasks, Record, RunState, Told
from dragon.runtime.protocol.request import OfAll, OfProcess, Request


class TelemetryLevel(Request[int]):
    """Return the telemetry level; 0 is off."""


class StartMeasuring(OfAll[int]):
    """Measure at that level, every `period` seconds. Raises ValueError."""

    level: int
    period: float | None = None


class StopMeasuring(OfAll[int]):
    """Stop measuring and drop all values."""


class AddValue(Request[None]):
    """Record a program's own value; a counter is increased by it. Raises ValueError if the name has another kind."""

    name: str
    value: float
    kind: Kind
    time_stamp: float | None
    tags: dict[str, str]


class Kinds(OfAll[tuple[str, Kind]]):
    """Return the metrics of which nodes have values, with their kinds."""


class Query(OfAll[Record]):
    """Return values of some metrics between two times, one for each interval of `interval` seconds."""

    metrics: list[str]
    tags: dict[str, list[str]]
    start: float
    end: float
    interval: float
    aggregate: Aggregate


class Families(OfAll[Family[Told]]):
    """Return the newest values, as Prometheus groups them."""


class Lines(OfAll[Family[Line]]):
    """Return the newest values as Prometheus's text."""


class Lifetimes(OfAll[Lifetime]):
    """Return the processes that are alive, or have ended since a time; at any level."""

    since: float = 0.0


class NameTask(Request[int]):
    """Return the number with which processes of this node record tasks of that name."""

    name: str


class TasksBetween(OfAll[NodeTasks]):
    """Return at most `most` tasks of pools and batches that ran between two times; none below level 5."""

    start: float
    end: float
    most: int


class OutputOf(OfProcess[str]):
    """Return the end of a process's output, if the agent forwards it: on several nodes, or with labels."""


class StateOfRun(Request[RunState]):
    """Return the state of the run and of telemetry."""
