"""Telemetry as this node's agent serves it to the processes of the node and to the other agents, the state of the run,
and both as text for Prometheus."""

from __future__ import annotations

import math
import time
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from dragon.agent.services import Services
from dragon.agent.telemetry.seen import lifetimes, see
from dragon.infrastructure import variables
from dragon.infrastructure.metrics import (
    METRICS,
    Aggregate,
    Family,
    Kind,
    Line,
    Record,
    RunState,
    Sample,
    Tags,
    Told,
    exported_name,
    has,
    reduced,
)
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol import telemetry as protocol
from dragon.runtime.rpc import serves
from dragon.runtime.run_info import RunInfo, run_name

if TYPE_CHECKING:
    from dragon.agent.telemetry.recorder import Recorder
    from dragon.agent.telemetry.sampler import Sampler
    from dragon.agent.telemetry.tracer import Tracer
    from dragon.infrastructure.metrics import Lifetime, NodeTasks, Span


_MOST_POINTS = 600
_MOST_SERIES = 8192
_BYTES_PER_POINT = 16

_Key = tuple[str, Tags]


class Series:
    """The newest values of one metric with one set of tags, and the number and the sum of all values there were."""

    def __init__(self, name: str, tags: dict[str, str], kind: Kind) -> None:
        self.name = name
        self.tags = tags
        self.kind = kind
        self.count = 0
        self.total = 0.0
        self.last = 0.0
        self.changed = 0.0
        self._times = array("d")
        self._values = array("d")

    def add(self, time: float, value: float) -> bool:
        """Append a value; if there are too many, it replaces the oldest. Return whether the series got longer."""
        place = self.count % _MOST_POINTS
        grows = self.count < _MOST_POINTS
        if grows:
            self._times.append(time)
            self._values.append(value)
        else:
            self._times[place], self._values[place] = time, value
        self.count += 1
        self.total += value
        self.last, self.changed = value, time
        return grows

    def __len__(self) -> int:
        return len(self._times)

    def points(self, start: float, end: float) -> list[tuple[float, float]]:
        """Return the times and values between two times, sorted by time."""
        found = [(t, v) for t, v in zip(self._times, self._values, strict=True) if start <= t <= end]
        return sorted(found, key=lambda point: point[0])


class History:
    """All series. If there are too many, the one that was not written to for the longest time is dropped."""

    def __init__(self) -> None:
        self._series: OrderedDict[_Key, Series] = OrderedDict()
        self._points = 0

    def __iter__(self) -> Iterator[Series]:
        return iter(self._series.values())

    @property
    def size(self) -> int:
        return self._points * _BYTES_PER_POINT

    def add(self, name: str, tags: Tags, kind: Kind, time: float, value: float) -> None:
        """Add a value. Raises ValueError if the metric is of another kind."""
        key = name, tags
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = Series(name, dict(tags), kind)
            if len(self._series) > _MOST_SERIES:
                _, forgotten = self._series.popitem(last=False)
                self._points -= len(forgotten)
        elif series.kind != kind:
            raise ValueError(f"metric {name!r} is a {series.kind} already, and cannot be a {kind} as well")
        self._series.move_to_end(key)
        self._points += series.add(time, value)

    def last(self, name: str, tags: Tags) -> float:
        series = self._series.get((name, tags))
        return series.last if series is not None else 0.0

    def clear(self) -> None:
        self._series.clear()
        self._points = 0

    @serves(protocol.Kinds)
    def kinds(self) -> list[tuple[str, Kind]]:
        return sorted({series.name: series.kind for series in self}.items())

    @serves(protocol.Query)
    def query(
        self,
        metrics: list[str],
        tags: dict[str, list[str]],
        start: float,
        end: float,
        interval: float,
        aggregate: Aggregate,
    ) -> list[Record]:
        """Return the series of these metrics, with these tags, that have points in the given time."""
        found = []
        for series in self:
            if series.name in metrics and has(series.tags, tags):
                points = series.points(start, end)
                times, values = reduced([t for t, _ in points], [v for _, v in points], interval, aggregate)
                if times:
                    found.append((series.name, series.tags, times, values))
        return found


def families(history: History, now: float, age: float) -> list[Family[Told]]:
    """Return the newest values of all series. A metric that the runtime measures is included only if its value is no
    older than `age` seconds, or than the metric's own `counts_for`."""
    found: dict[str, Family[Told]] = {}
    for series in history:
        metric = METRICS.get(series.name)
        if metric is None:
            family: Family[Told] = Family(_exported(series), series.kind, f"{series.name}, as the program told it")
        elif now - series.changed <= max(age, metric.counts_for):
            family = Family(metric.exported, metric.kind, metric.meaning)
        else:
            continue
        family = found.setdefault(family.name, family)
        if series.kind != family.kind:
            continue  # two names of a program that are the same in Prometheus, where a name has one type
        if series.kind == Kind.SUMMARY:
            family.samples.append(("_count", series.tags, series.count))
            family.samples.append(("_sum", series.tags, series.total))
        else:
            family.samples.append(("", series.tags, series.last * (metric.scale if metric else 1)))
    return list(found.values())


def _exported(series: Series) -> str:
    suffix = {Kind.COUNTER: "_total", Kind.SUMMARY: "_seconds", Kind.GAUGE: ""}[series.kind]
    return exported_name(series.name).removesuffix(suffix) + suffix


def lines(families: Iterable[Family[Told]]) -> list[Family[Line]]:
    """Return families with their samples as lines of Prometheus' page."""
    return [
        Family(one.name, one.kind, one.meaning, [_line(one.name, *told) for told in one.samples]) for one in families
    ]


def _line(name: str, suffix: str, tags: dict[str, str], value: float) -> Line:
    labels = {exported_name(tag).replace(":", "_"): text for tag, text in tags.items()}
    told = ",".join(f'{tag}="{_escaped(text)}"' for tag, text in labels.items())
    return f"{name}{suffix}{{{told}}} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(float(value))


def run_state(services: Services, level: int, period: float) -> RunState:
    """Return the state of the run, whose agent measures at `level` every `period` seconds."""
    info, links = RunInfo.read(services.run.folder), services.links
    return RunState(
        name=run_name(services.run.folder, info),
        command=info.command,
        started=info.started,
        hosts=list(map(links.host_name, links.members)) if links else [services.host_name],
        lost=dict(links.lost) if links else {},
        level=level,
        period=period,
    )


log = runtime_log("telemetry")

_STALE_PERIODS = 5  # periods without a new value


class Telemetry:
    """The telemetry of one node. It starts with the level that the environment sets, by default 0. If the environment
    names a directory, the values are also written to files there."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._level = 0
        self._period = 1.0
        self.history = History()
        self._sampler: Sampler | None = None
        self._recorder: Recorder | None = None
        self._tracer: Tracer | None = None
        self._task_names: list[str] = []
        try:
            level = variables.telemetry_level()
            if level:
                self.start(level)
        except ValueError as error:
            log.error("%s; nothing is measured", error)

    # ---- requests

    @serves(protocol.TelemetryLevel)
    def _get_level(self) -> int:
        return self._level

    @serves(protocol.Lifetimes)
    async def _lifetimes(self, since: float = 0.0) -> list[Lifetime]:
        await self._services.spawner.catch_up()
        return lifetimes(self._services, since)

    @serves(protocol.OutputOf)
    def _output_of(self, puid: int) -> str:
        return self._services.streams.outputs.of(puid)

    @serves(protocol.StateOfRun)
    def _state_of_run(self) -> RunState:
        return run_state(self._services, self._level, self._period)

    @serves(protocol.StartMeasuring)
    def start(self, level: int, period: float | None = None) -> list[int]:
        """Measure at that level, every `period` seconds. Raises ValueError if there is no such level."""
        highest = variables.HIGHEST_TELEMETRY_LEVEL
        if not 1 <= level <= highest:
            raise ValueError(f"there is no telemetry level {level}; the levels are 1 to {highest}")
        period = variables.telemetry_period() if period is None else period
        self.close()
        self._level, self._period = level, period
        self._record()
        if level >= 2:
            from dragon.agent.telemetry.sampler import Sampler, sources_of

            self._sampler = Sampler(
                sources_of(level), self._period, lambda: see(self._services, self.history.size, level), self._store
            )
        if level >= variables.TRACING_LEVEL:
            self._trace()
        return [level]

    def _trace(self) -> None:
        from dragon.agent.telemetry.tracer import Tracer

        try:
            self._tracer = Tracer(self._services, self._task_names, self._store_spans)
        except MemoryError as error:
            log.warning("the run is not traced: %s", error)

    def _record(self) -> None:
        directory = variables.telemetry_directory()
        if directory is not None and self._recorder is None:
            try:
                from dragon.agent.telemetry.recorder import open_recorder
            except ImportError as error:
                reason = f"{error}; pip install 'dragon-runtime[telemetry]'"
                log.warning("telemetry is not recorded in %s: %s; the program continues", directory, reason)
            else:
                self._recorder = open_recorder(self._services, directory)

    @serves(protocol.StopMeasuring)
    def stop(self) -> list[int]:
        self.close()
        self._level = 0
        self.history.clear()
        return [0]

    @serves(protocol.AddValue)
    def add(self, name: str, value: float, kind: Kind, time_stamp: float | None, tags: dict[str, str]) -> None:
        """Store a value of a program's own metric; the value of a counter is added to it."""
        if not self._level:
            return
        if name in METRICS:
            raise ValueError(f"metric {name!r} is one that the runtime measures; give yours another name")
        when = time.time() if time_stamp is None else time_stamp
        all_tags = tuple(sorted({"host": self._services.host_name, **tags}.items()))
        if kind == Kind.COUNTER:
            value += self.history.last(name, all_tags)
        self._keep(name, all_tags, kind, when, value)

    @serves(protocol.NameTask)
    def name_task(self, name: str) -> int:
        """Return the number with which processes of this node record tasks of that name."""
        if name not in self._task_names:
            self._task_names.append(name)
        return self._task_names.index(name)

    @serves(protocol.TasksBetween)
    def _tasks_between(self, start: float, end: float, most: int) -> list[NodeTasks]:
        if self._tracer is None:
            return []
        links = self._services.links
        share = most // (len(links.members) if links is not None else 1)
        return [self._tracer.tasks_between(start, end, max(share, 1))]

    @serves(protocol.Families)
    def families(self) -> list[Family[Told]]:
        """Return the newest values in Prometheus' form."""
        return families(self.history, time.time(), _STALE_PERIODS * self._period)

    @serves(protocol.Lines)
    def lines(self) -> list[Family[Line]]:
        """Return the newest values as lines of Prometheus' page."""
        return lines(self.families())

    # ---- the agent

    @property
    def recording(self) -> bool:
        return self._recorder is not None

    async def finish(self) -> None:
        self.close()
        if self._recorder is not None:
            await self._recorder.close()

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()
            self._sampler = None
        if self._tracer is not None:
            self._tracer.close()
            self._tracer = None

    def _store_spans(self, spans: list[Span]) -> None:
        if self._recorder is not None:
            self._recorder.add_spans(spans)

    def _store(self, samples: list[Sample]) -> None:
        host, now = ("host", self._services.host_name), time.time()
        for sample in samples:
            self._keep(sample.name, (host, *sample.tags), METRICS[sample.name].kind, now, sample.value)

    def _keep(self, name: str, tags: Tags, kind: Kind, when: float, value: float) -> None:
        self.history.add(name, tags, kind, when, value)
        if self._recorder is not None:
            self._recorder.add(when, name, tags, kind, value)
