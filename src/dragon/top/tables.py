"""The tables of a run at one moment, as text and as values to sort by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from dragon.infrastructure.metrics import PROCESS_STATES, Lifetime
from dragon.signals import name_of
from dragon.top.snapshot import OF_GPUS, OF_NODES, OF_POOLS, OF_PROCESSES, OF_QUEUES, Series, Snapshot

_BARS = " ▁▂▃▄▅▆▇█"
_SPARK = 20
_ENDED_SHOWN = 200  # processes that have ended, the newest


class Cell(NamedTuple):
    """The text that is shown, and the value to sort by."""

    text: str
    value: float | str


class Row(NamedTuple):
    """A line of a table. `state` is "", "ended" or "failed"."""

    key: str
    cells: Sequence[Cell]
    state: str = ""


class _Subject:
    """Something that has metrics: a node, a queue."""

    def __init__(self, tags: tuple[str, ...]) -> None:
        self.tags = tags
        self._series: dict[str, list[Series]] = {}

    def add(self, series: Series) -> None:
        self._series.setdefault(series.metric, []).append(series)

    def values(self, metric: str) -> list[float]:
        return self._series[metric][0].values if metric in self._series else []

    def last(self, metric: str) -> float | None:
        """Return the newest value, summed if there are several series."""
        found = [series.values[-1] for series in self._series.get(metric, ())]
        return sum(found) if found else None

    def rates(self, metric: str) -> list[float]:
        """Return the increases of a counter per second."""
        if metric not in self._series:
            return []
        series = self._series[metric][0]
        pairs = pairwise(zip(series.times, series.values, strict=True))
        return [max(later - earlier, 0.0) / max(t2 - t1, 1e-9) for (t1, earlier), (t2, later) in pairs]


def _subjects(snapshot: Snapshot, metrics: Iterable[str], *names: str) -> list[_Subject]:
    wanted = set(metrics)
    found: dict[tuple[str, ...], _Subject] = {}
    for series in snapshot.series:
        if series.metric in wanted and series.values:
            tags = tuple(series.tags.get(name, "") for name in names)
            found.setdefault(tags, _Subject(tags)).add(series)
    return list(found.values())


# ---- cells


def sparkline(values: Sequence[float], top: float | None = None) -> str:
    """Return the newest values as bars. A bar of full height is `top`, by default the largest value."""
    shown = values[-_SPARK:]
    highest = max([*shown, 1e-9]) if top is None else top
    steps = len(_BARS) - 1
    return "".join(_BARS[min(round(max(value, 0) / highest * steps), steps)] for value in shown)


def _number(value: float | None, unit: str = "") -> Cell:
    if value is None:
        return Cell("", -1.0)
    base, prefixes = (1024, ("", "Ki", "Mi", "Gi", "Ti")) if unit.startswith("B") else (1000, ("", "k", "M", "G"))
    shown, step = value, 0
    while unit != "%" and abs(shown) >= base and step < len(prefixes) - 1:
        shown, step = shown / base, step + 1
    digits = 0 if shown == int(shown) or abs(shown) >= 100 else 1
    return Cell(f"{shown:.{digits}f} {prefixes[step]}{unit}".rstrip(), value)


def _text(value: str) -> Cell:
    return Cell(value, value)


def _spark(values: Sequence[float], top: float | None = None) -> Cell:
    return Cell(sparkline(values, top), values[-1] if values else -1.0)


def _rate(subject: _Subject, metric: str, unit: str) -> Cell:
    rates = subject.rates(metric)
    return _number(rates[-1] if rates else None, unit)


def duration(seconds: float) -> str:
    """Return a duration as minutes and seconds, and hours if there are any."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# ---- tables


def _nodes(snapshot: Snapshot) -> list[Row]:
    rows = []
    for node in _subjects(snapshot, OF_NODES, "host"):
        cpu = node.values("cpu_percent")
        cells = [
            _text(node.tags[0]),
            _spark(cpu, 100),
            _number(node.last("cpu_percent"), "%"),
            _number(node.last("used_RAM"), "%"),
            _rate(node, "network_received", "B/s"),
            _rate(node, "network_sent", "B/s"),
            _number(node.last("arena_used"), "B"),
            _number(node.last("num_running_processes")),
        ]
        rows.append(Row(node.tags[0], cells))
    for index, reason in snapshot.run.lost.items():
        host = snapshot.run.hosts[index]
        rows.append(Row(f"lost {host}", [_text(host), _text(f"is lost: {reason}"), *[Cell("", -1.0)] * 6], "failed"))
    return rows


def _gpus(snapshot: Snapshot) -> list[Row]:
    return [
        Row(
            "/".join(gpu.tags),
            [
                *map(_text, gpu.tags),
                _spark(gpu.values("DeviceUtilization"), 100),
                _number(gpu.last("DeviceUtilization"), "%"),
                _number(gpu.last("DeviceMemoryUtilization"), "%"),
                _number(gpu.last("DevicePowerUsage"), "W"),
                _number(gpu.last("DeviceTemperature"), "°C"),
            ],
        )
        for gpu in _subjects(snapshot, OF_GPUS, "host", "gpu")
    ]


def _processes(snapshot: Snapshot) -> list[Row]:
    known = {subject.tags[0]: subject for subject in _subjects(snapshot, OF_PROCESSES, "puid")}
    ended = sorted((life for life in snapshot.lifetimes if life.ended is not None), key=lambda life: life.ended or 0.0)
    shown = [life for life in snapshot.lifetimes if life.ended is None] + ended[-_ENDED_SHOWN:]
    return [_process(life, known.get(str(life.puid), _Subject(())), snapshot.now) for life in shown]


def _process(life: Lifetime, known: _Subject, now: float) -> Row:
    state = known.last("process_state")
    told, look = (PROCESS_STATES[int(state)] if state is not None else "lives"), ""
    if life.ended is not None:
        code = life.code or 0
        told = "ended" if code == 0 else f"exit code {code}" if code > 0 else f"killed by signal {name_of(-code)}"
        if life.terminated:
            told = f"terminated by {name_of(-code if code < 0 else code - 128)}"
        look = "failed" if life.has_failed else "ended"
    lasted = (life.ended or now) - life.started
    cells = [
        _text(life.name),
        Cell(str(life.puid), life.puid),
        Cell(str(life.pid), life.pid),
        _text(life.host),
        _text(told),
        _number(known.last("process_cpu_percent") if life.ended is None else None, "%"),
        _number(known.last("process_memory") if life.ended is None else None, "B"),
        Cell(duration(lasted), lasted),
    ]
    return Row(str(life.puid), cells, look)


def _queues(snapshot: Snapshot) -> list[Row]:
    return [
        Row(
            "/".join(queue.tags),
            [
                *map(_text, queue.tags),
                _spark(queue.values("queue_depth")),
                _number(queue.last("queue_depth")),
                _rate(queue, "queue_puts", "/s"),
                _rate(queue, "queue_gets", "/s"),
                _number(queue.last("queue_waiting")),
            ],
        )
        for queue in _subjects(snapshot, OF_QUEUES, "host", "queue", "place")
    ]


def _pools(snapshot: Snapshot) -> list[Row]:
    return [
        Row(
            "/".join(pool.tags),
            [
                *map(_text, pool.tags),
                _number(pool.last("pool_workers")),
                _spark(pool.values("pool_tasks_running")),
                _number(pool.last("pool_tasks_running")),
                _number(pool.last("pool_tasks_waiting")),
                _number(pool.last("pool_tasks_done")),
                _rate(pool, "pool_tasks_done", "/s"),
            ],
        )
        for pool in _subjects(snapshot, OF_POOLS, "host", "pool", "place")
    ]


class Table(NamedTuple):
    """A table: its title, its columns, the function that makes its rows, and the column to sort by, descending."""

    title: str
    columns: tuple[str, ...]
    rows: Callable[[Snapshot], list[Row]]
    order: str


TABLES = (
    Table("Nodes", ("Node", "CPU", "now", "Memory", "Received", "Sent", "Shared", "Processes"), _nodes, ""),
    Table("GPUs", ("Node", "GPU", "Busy", "now", "Memory", "Power", "Temperature"), _gpus, ""),
    Table("Processes", ("Name", "puid", "pid", "Node", "State", "CPU", "Memory", "Time"), _processes, "CPU"),
    Table("Queues", ("Node", "Queue", "Made at", "Messages", "now", "Put", "Taken", "Waiting"), _queues, "now"),
    Table("Pools", ("Node", "Pool", "Made at", "Workers", "Running", "now", "Waiting", "Done", "Rate"), _pools, ""),
)
