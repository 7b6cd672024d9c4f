"""What is asked about what telemetry measures."""

from __future__ import annotations

from dragon.infrastructure.metrics import Aggregate, Family, Kind, Lifetime, Line, RunState, Told
from dragon.infrastructure.series import Record
from dragon.runtime.protocol.request import OfAll, OfProcess, Request

__all__ = [
    "AddValue",
    "Families",
    "Kinds",
    "Lifetimes",
    "Lines",
    "MetricNames",
    "NameTask",
    "OutputOf",
    "Query",
    "StartMeasuring",
    "StateOfRun",
    "StopMeasuring",
    "TelemetryLevel",
]


class TelemetryLevel(Request[int], tag="telemetry.level", frozen=True):
    """The level at which is measured; 0 is off."""


class StartMeasuring(OfAll[int], tag="telemetry.start", frozen=True):
    """Measure at that level, every `period` seconds. Raises ValueError."""

    level: int
    period: float | None = None


class StopMeasuring(OfAll[int], tag="telemetry.stop", frozen=True):
    """Measure no more and forget everything."""


class AddValue(Request[None], tag="telemetry.add", frozen=True):
    """Keep a value of a program's own; a counter grows by it. Raises ValueError where name or kind is taken."""

    name: str
    value: float
    kind: Kind
    time_stamp: float | None
    tags: dict[str, str]


class MetricNames(OfAll[str], tag="telemetry.names", frozen=True):
    """The metrics of which nodes have values."""


class Kinds(OfAll[tuple[str, Kind]], tag="telemetry.kinds", frozen=True):
    """The same, with the kind of each."""


class Query(OfAll[Record], tag="telemetry.query", frozen=True):
    """What nodes have of some metrics: values between two times, one for each interval of so many seconds."""

    metrics: list[str]
    tags: dict[str, list[str]]
    start: float
    end: float
    interval: float
    aggregate: Aggregate


class Families(OfAll[Family[Told]], tag="telemetry.families", frozen=True):
    """The newest values, as Prometheus has them."""


class Lines(OfAll[Family[Line]], tag="telemetry.lines", frozen=True):
    """The same as text."""


class Lifetimes(OfAll[Lifetime], tag="telemetry.lifetimes", frozen=True):
    """The processes that live, or have ended since that time; at any level."""

    since: float = 0.0


class NameTask(Request[int], tag="telemetry.name_task", frozen=True):
    """The number by which processes of this node note tasks of that name."""

    name: str


class OutputOf(OfProcess[str], tag="telemetry.output", frozen=True):
    """The end of what a process wrote, if that passes through the agent: on several nodes, or with labels."""


class StateOfRun(Request[RunState], tag="telemetry.run", frozen=True):
    """The run, and what is measured."""
