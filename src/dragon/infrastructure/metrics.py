"""The metrics that telemetry measures, and their levels."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Generic, Literal, TypeVar

from dragon.infrastructure.structs import msgspec


class Span(msgspec.Struct, frozen=True):
    """An operation or a wait of a thread of a process. Times are in seconds since 1970. `what` is get, put, read, join,
    acquire, wait or task; or, of the agent, send and receive: those of the same message have the same `link`, which is
    0 otherwise. `failed` says whether a task raised an exception; in a recording of an earlier version it is None."""

    start: float
    end: float
    pid: int
    thread: int
    what: str
    name: str
    link: int = 0
    failed: bool | None = False


class Task(msgspec.Struct, frozen=True, array_like=True):
    """A task of a pool or a batch that a process has run, or runs: its end is None then. Times are in seconds since
    1970."""

    pid: int
    start: float
    end: float | None
    name: str
    failed: bool


class NodeTasks(msgspec.Struct, frozen=True):
    """Tasks that a node's processes ran in an interval, or run now. `count` is how many the node knows, of which
    `tasks` may be a part. Tasks that ended before `known_since` are not kept any more; it is 0 while all are. `lost`
    tasks or waits were not recorded at all, because there were too many."""

    node: int
    tasks: list[Task]
    count: int
    known_since: float
    lost: int


def failed_or_longest(spans: list[Span], most: int) -> list[Span]:
    """Return at most that many spans of tasks: those that failed, then the longest."""
    if len(spans) <= most or not most:
        return spans[:most]
    ranks = [math.inf if span.failed else span.end - span.start for span in spans]
    least = sorted(ranks)[-most]
    return [span for span, rank in zip(spans, ranks, strict=True) if rank >= least][-most:]


def tasks_of(spans: Iterable[Span]) -> list[Task]:
    """Return the tasks of these spans."""
    return [Task(span.pid, span.start, span.end, span.name, bool(span.failed)) for span in spans]


def task_word(number: int, failed: bool) -> int:
    """Return the number under which the core records a task, given that of its name."""
    return number << 1 | failed


def task_of(word: int) -> tuple[int, bool]:
    """Return the number of a task's name, and whether the task failed."""
    return word >> 1, bool(word & 1)


Aggregate = Literal["last", "avg", "min", "max", "sum", "count", "dev"]
AGGREGATES: tuple[Aggregate, ...] = ("last", "avg", "min", "max", "sum", "count", "dev")

PROCESS_STATES = ("running", "sleeping", "disk-sleep", "stopped", "other")
"""The states that the values 0, 1, … of `process_state` mean."""


class Kind(enum.StrEnum):
    """The kind of a metric's values."""

    GAUGE = "gauge"  # a level that rises and falls
    COUNTER = "counter"  # a sum that only grows
    SUMMARY = "summary"  # single measurements


Tags = tuple[tuple[str, str], ...]
"""(name, value) pairs, sorted by name."""


def tags_of(**values: object) -> Tags:
    """Return the tags with these names and values."""
    return tuple(sorted((name, str(value)) for name, value in values.items()))


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One value of a metric; `tags` distinguish it from others of the same name."""

    name: str
    value: float
    tags: Tags = ()


class Lifetime(msgspec.Struct, frozen=True):
    """A process of the run, from its start to its end. Times are in seconds since 1970; `code` is its exit code.
    `terminated` says whether it ended by a signal that the program or the run sent, as a pool does at its end."""

    node: int
    host: str
    puid: int
    pid: int
    name: str
    parent: int
    group: int
    started: float
    ended: float | None = None
    code: int | None = None
    terminated: bool | None = False

    @property
    def has_failed(self) -> bool:
        """Whether the process ended with an error, and not by a signal that was sent to end it."""
        return self.code not in (None, 0) and not self.terminated


class RunState(msgspec.Struct, frozen=True):
    """The state of a run: its hosts by index of the node, why nodes were lost, the telemetry level, and its period in
    seconds."""

    name: str
    command: str
    started: float
    hosts: list[str]
    lost: dict[int, str]
    level: int
    period: float


Told = tuple[str, dict[str, str], float]
"""A sample for Prometheus: the suffix of its family's name, its tags and its value."""

Line = str
"""A sample in Prometheus's text format: name with labels, a space, and value."""

T = TypeVar("T", Told, Line)


class Family(msgspec.Struct, Generic[T], array_like=True):
    """A metric in Prometheus's form: name, type, meaning and samples."""

    name: str
    kind: str
    meaning: str
    samples: list[T] = []


class Metric(msgspec.Struct, frozen=True):
    """A metric of the runtime. Prometheus gets it as `exported`, in base units: the value times `scale`. `counts_for`
    are the seconds for which a value counts as the newest one, if it is not measured each time."""

    name: str
    level: int
    exported: str
    meaning: str
    kind: Kind = Kind.GAUGE
    scale: float = 1.0
    counts_for: float = 0.0


def merged(families: Iterable[Family[T]]) -> list[Family[T]]:
    """Return the families of several nodes, each name once. If the types differ, the first one counts."""
    found: dict[str, Family[T]] = {}
    for family in families:
        first = found.setdefault(family.name, Family(family.name, family.kind, family.meaning, []))
        if first.kind == family.kind:
            first.samples += family.samples
    return list(found.values())


def exported_name(text: str) -> str:
    """Return a name with the characters that Prometheus does not allow replaced by underscores."""
    return re.sub(r"^(?=\d)|[^a-zA-Z0-9_:]", "_", text)


_PERCENT, _MEGA = 0.01, 1e6
_IN_TURN = 30.0  # seconds; if there are many processes, only some of them are read each time


def _metric(name: str, level: int, exported: str, meaning: str, counts_for: float = 0.0) -> Metric:
    """Return a metric. What it is called in Prometheus says its kind and its unit."""
    kind = Kind.COUNTER if exported.endswith("_total") else Kind.GAUGE
    scale = {"ratio": _PERCENT, "hertz": _MEGA}.get(exported.rpartition("_")[2], 1.0)
    return Metric(name, level, f"dragon_{exported}", meaning, kind, scale, counts_for)


METRICS = {
    metric.name: metric
    for metric in (
        _metric("load_average", 2, "node_load1", "Load average over one minute"),
        _metric("load_average_5m", 2, "node_load5", "Load average over five minutes"),
        _metric("load_average_15m", 2, "node_load15", "Load average over fifteen minutes"),
        _metric("cpu_percent", 2, "node_cpu_ratio", "Busy part of all CPUs"),
        _metric("used_RAM", 2, "node_memory_ratio", "Part of the memory that is in use"),
        _metric("memory_used", 2, "node_memory_used_bytes", "Memory in use"),
        _metric("swap_used", 2, "node_swap_used_bytes", "Swap space in use"),
        _metric("network_sent", 2, "node_network_sent_bytes_total", "Sent, but for the loopback"),
        _metric("network_received", 2, "node_network_received_bytes_total", "Received, but for the loopback"),
        _metric("disk_read", 2, "node_disk_read_bytes_total", "Read from disks"),
        _metric("disk_written", 2, "node_disk_written_bytes_total", "Written to disks"),
        _metric("num_running_processes", 2, "node_processes", "Live processes of the run on the node"),
        _metric("arena_used", 2, "node_arena_used_bytes", "Shared memory in use by the run"),
        _metric(
            "def_pool_utilization", 2, "node_arena_ratio", "Part in use of the shared memory that the run may have"
        ),
        _metric("DeviceUtilization", 3, "gpu_ratio", "Part of the time that the GPU computes"),
        _metric("DeviceMemoryUtilization", 3, "gpu_memory_ratio", "Part of its memory in use"),
        _metric("DeviceMemoryUsed", 3, "gpu_memory_used_bytes", "GPU memory in use"),
        _metric("DevicePowerUsage", 3, "gpu_power_watts", "Power that the GPU draws"),
        _metric("DeviceTemperature", 3, "gpu_temperature_celsius", "Temperature of the GPU"),
        _metric("DeviceClock", 3, "gpu_clock_hertz", "Clock of its processors"),
        _metric("DeviceMemoryClock", 3, "gpu_memory_clock_hertz", "Clock of its memory"),
        _metric("DeviceECCErrors", 3, "gpu_ecc_errors_total", "Errors of its memory that could not be corrected"),
        _metric("cpu_core_percent", 4, "node_core_ratio", "Busy part of one CPU"),
        _metric("process_cpu_percent", 4, "process_cpu_ratio", "CPUs that the process uses", _IN_TURN),
        _metric("process_memory", 4, "process_resident_memory_bytes", "Memory of the process", _IN_TURN),
        _metric("process_state", 4, "process_state", f"State, one of 0 to 4: {', '.join(PROCESS_STATES)}", _IN_TURN),
        _metric("process_gpu_memory", 4, "process_gpu_memory_bytes", "GPU memory of the process"),
        _metric("group_live", 4, "group_live_processes", "Members of the process group that live"),
        _metric("group_restarts", 4, "group_restarts_total", "Starts of members that had ended"),
        _metric("group_cpu_percent", 4, "group_cpu_ratio", "CPUs that its members on the node use"),
        _metric("group_memory", 4, "group_resident_memory_bytes", "Memory of its members on the node"),
        _metric("queue_depth", 4, "queue_messages", "Messages in the queue"),
        _metric("queue_bytes", 4, "queue_bytes", "Shared memory in which its messages lie"),
        _metric("queue_puts", 4, "queue_puts_total", "Messages that were put"),
        _metric("queue_gets", 4, "queue_gets_total", "Messages that were taken"),
        _metric("queue_waiting", 4, "queue_waiting", "Who waits to get or to put"),
        _metric("pool_tasks_waiting", 4, "pool_waiting_tasks", "Tasks that no worker has taken"),
        _metric("pool_tasks_running", 4, "pool_running_tasks", "Tasks that workers do"),
        _metric("pool_tasks_done", 4, "pool_done_tasks_total", "Tasks that are done"),
        _metric("pool_workers", 4, "pool_workers", "Workers that live"),
        _metric("dictionary_bytes", 4, "dictionary_bytes", "Memory that the manager's part takes"),
        _metric("dictionary_limit", 4, "dictionary_limit_bytes", "Memory that the manager's part may take"),
        _metric("dictionary_keys", 4, "dictionary_keys", "Keys, once for each checkpoint they were written in"),
        _metric("db_size", 4, "node_telemetry_bytes", "Memory of the node's history of metrics"),
    )
}


# Name, tags, times and values of one series, in order of time.
Record = tuple[str, dict[str, str], list[float], list[float]]

_REDUCE: dict[Aggregate, Callable[[Sequence[float]], float]] = {
    "last": lambda values: values[-1],
    "avg": lambda values: sum(values) / len(values),
    "min": min,
    "max": max,
    "sum": sum,  # fsum refuses infinities, but a loss that diverged must be visible
    "count": lambda values: float(len(values)),
    "dev": lambda values: math.dist(values, [sum(values) / len(values)] * len(values)) / math.sqrt(len(values)),
}


def has(tags: Mapping[str, str], wanted: Mapping[str, Collection[str]]) -> bool:
    """Return whether each wanted tag has one of its values; "*" means any value."""
    return all(name in tags and ("*" in values or tags[name] in values) for name, values in wanted.items())


_SHORTEST = 1e-6  # seconds


def reduced(
    times: list[float], values: list[float], interval: float, aggregate: Aggregate
) -> tuple[list[float], list[float]]:
    """Aggregate the values within each interval of `interval` seconds to one, at the start of the interval. With 0, or
    less than a microsecond, which times since 1970 cannot resolve, the values are returned unchanged."""
    if not interval >= _SHORTEST:
        return times, values
    reduce = _REDUCE[aggregate]
    found: tuple[list[float], list[float]] = ([], [])
    begin = 0
    for slot, members in groupby([math.floor(time / interval) for time in times]):
        end = begin + sum(1 for _ in members)
        found[0].append(slot * interval)
        found[1].append(reduce(values[begin:end]))
        begin = end
    return found
