"""The page of a recording: what `dragon dashboard` shows of a run, from its start to its end, in one file."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

import msgspec

from dragon.infrastructure.metrics import METRICS, Aggregate, Kind, Lifetime
from dragon.infrastructure.series import Record
from dragon.infrastructure.spans import NodeTasks, Span, failed_or_longest, tasks_of
from dragon.telemetry.recording import NoRecordingError, Recording
from dragon.web.page import SIGNALS, html

_MOST_NODES = 32
_MOST_OWN_METRICS = 64
_MOST_PROCESSES = 20_000
_MOST_PROCESS_SECONDS = 3_000_000.0
_MOST_TASKS = 20_000
_POINTS = 300  # points of a line
_DIGITS = 6
# Reduced to one number for each process in the table, as there may be very many values.
_OF_PROCESSES: dict[str, Aggregate] = {"process_cpu_percent": "avg", "process_memory": "max"}
_NOT_DRAWN = {"cpu_core_percent", "db_size"}


def recorded_page(recording: Recording, hosts: Sequence[str] = ()) -> str:
    """Return a self-contained HTML page. It has charts of these hosts, or else of the first 32.

    Raises NoRecordingError if nothing was recorded, or the run had no such host.
    """
    processes = recording.lifetimes()
    names = recording.names()
    if not names and not processes:
        if damaged := recording.damaged:
            raise NoRecordingError(f"{_damage(damaged)}, and {recording.folder} has nothing else")
        raise NoRecordingError(f"no measurements of the run have been written to {recording.folder}")
    run, end = recording.run(processes), recording.end
    start, every = run.started, run.hosts
    if unknown := sorted(set(hosts) - set(every)):
        raise NoRecordingError(f"the run had no node {unknown[0]!r}; there were {', '.join(every)}")
    shown = list(hosts) or every[:_MOST_NODES]
    own = sorted(names - METRICS.keys())
    measured = sorted((names & METRICS.keys()) - _NOT_DRAWN)
    drawn = [*(name for name in measured if not name.startswith("process_")), *own[:_MOST_OWN_METRICS]]
    records = _curves(recording, drawn, shown, start, end)
    listed = _chosen(processes, end)
    notes = [*_state_of(recording), *_left_out(shown, every, "nodes have charts")]
    notes += _left_out(own[:_MOST_OWN_METRICS], own, "metrics of the program's own have charts")
    notes += _left_out(listed, processes, "processes are here, those that failed and the longest")
    nodes = _tasks(recording, processes)
    tasks, count = sum(len(node.tasks) for node in nodes), sum(node.count for node in nodes)
    notes += _left_out(range(tasks), range(count), "tasks are here, those that failed and the longest")
    if sum((one.ended or end) - one.started for one in processes) <= _MOST_PROCESS_SECONDS:
        records += _of_processes(recording, shown, start, end)
    else:
        notes.append("CPU and memory of its processes are in the recording only")
    told = {
        **msgspec.to_builtins(run),
        "now": end,
        "names": drawn,
        "metrics": METRICS,
        "signals": SIGNALS,
        "notes": notes,
    }
    return html(run.command, {"run": told, "records": records, "lifetimes": listed, "tasks": nodes})


def _curves(
    recording: Recording, metrics: Collection[str], hosts: Collection[str], start: float, end: float
) -> list[Record]:
    """Return as many values of metrics as a chart can show."""
    measured = {name for name in metrics if name in METRICS and METRICS[name].kind == Kind.GAUGE}
    interval = max((end - start) / _POINTS, 0.001)
    asked: list[tuple[set[str], Aggregate]] = [(measured, "avg"), (set(metrics) - measured, "last")]
    return [
        _plain(record, start)
        for names, aggregate in asked
        for record in recording.query(names, _of_hosts(hosts), start, end, interval, aggregate)
    ]


def _of_processes(recording: Recording, hosts: Collection[str], start: float, end: float) -> list[Record]:
    """Return the mean CPU and the peak memory of each process."""
    whole = 2 * end  # an interval that contains all times
    return [
        (name, tags, [end], [_rounded(values[-1])])
        for metric, aggregate in _OF_PROCESSES.items()
        for name, tags, _, values in recording.query([metric], _of_hosts(hosts), start, end, whole, aggregate)
    ]


def _tasks(recording: Recording, processes: Sequence[Lifetime]) -> list[NodeTasks]:
    """Return the tasks of pools and batches, of each node a part if they are very many."""
    node_of = {one.host: one.node for one in processes}
    most = _MOST_TASKS // max(len(node_of), 1)
    found: dict[str, list[Span]] = {host: [] for host in node_of}
    counts: Counter[str] = Counter()
    for host, span in recording.spans("task"):
        if host in found:
            counts[host] += 1
            found[host].append(span)
            if len(found[host]) > 2 * _MOST_TASKS:  # the others need not be kept
                found[host] = failed_or_longest(found[host], most)
    return [
        NodeTasks(node_of[host], tasks_of(failed_or_longest(spans, most)), counts[host], 0.0, 0)
        for host, spans in found.items()
    ]


def _of_hosts(hosts: Collection[str]) -> dict[str, Collection[str]]:
    return {"host": hosts} if hosts else {}


def _plain(record: Record, start: float) -> Record:
    """Return the record with values rounded to the digits that a chart can show."""
    name, tags, times, values = record
    return name, tags, [round(max(then, start), 3) for then in times], list(map(_rounded, values))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _chosen(processes: Sequence[Lifetime], end: float) -> list[Lifetime]:
    if len(processes) <= _MOST_PROCESSES:
        return list(processes)

    def rank(one: Lifetime) -> tuple[bool, float]:
        return not one.has_failed, one.started - (end if one.ended is None else one.ended)

    return sorted(processes, key=rank)[:_MOST_PROCESSES]


def _state_of(recording: Recording) -> list[str]:
    """Return notes on how the run ended, and on damaged files of its recording."""
    description = recording.description
    notes = [f"started {time.strftime('%Y-%m-%d %H:%M:%S %Z', time.localtime(recording.start))}"]
    if description is None or description.ended is None:
        notes.append("it was killed, or has not ended")
    if damaged := recording.damaged:
        notes.append(_damage(damaged))
    return notes


def _damage(files: Sequence[Path]) -> str:
    return f"{len(files)} damaged files are left out, such as {files[0].name}"


def _left_out(shown: Collection[object], every: Collection[object], what: str) -> list[str]:
    return [f"{len(shown):,} of {len(every):,} {what}"] if len(shown) < len(every) else []
