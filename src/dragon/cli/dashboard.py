"""`dragon dashboard`: serves a web page that shows a run, or writes that of a recorded one."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
import webbrowser
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path

from dragon.cli import watching
from dragon.commands import Parser
from dragon.files import whole_file
from dragon.infrastructure import metrics
from dragon.infrastructure.metrics import METRICS, Aggregate, Kind, Lifetime, NodeTasks, Record, Span
from dragon.telemetry.recording import NoRecordingError, Recording
from dragon.web.dashboard import Dashboard, about, html
from dragon.web.http import serve

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
    """Return a self-contained HTML page. It has charts of these hosts, or else of the first 32."""
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
    told = {"run": {**about(run, end, drawn), "notes": notes}, "records": records, "lifetimes": listed, "tasks": nodes}
    return html(run.command, told)


def _curves(
    recording: Recording, drawn: Collection[str], hosts: Collection[str], start: float, end: float
) -> list[Record]:
    """Return as many values of metrics as a chart can show."""
    measured = {name for name in drawn if name in METRICS and METRICS[name].kind == Kind.GAUGE}
    interval = max((end - start) / _POINTS, 0.001)
    asked: list[tuple[set[str], Aggregate]] = [(measured, "avg"), (set(drawn) - measured, "last")]
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
                found[host] = metrics.failed_or_longest(found[host], most)
    return [
        NodeTasks(node_of[host], metrics.tasks_of(metrics.failed_or_longest(spans, most)), counts[host], 0.0, 0)
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


_EPILOG = """\
examples:
  dragon dashboard                  your run on this machine, if there is one
  dragon dashboard 3fa9c1 --open    one of several (see `dragon ps`), in your browser
  dragon --dashboard train.py       the same from the start, for as long as the program runs
  dragon dashboard runs             write the page of the newest run that was recorded with --telemetry runs, one file
  dragon dashboard runs -o a.html   write it to that file; - is stdout

The page is served on this machine only, and its link has a token. From elsewhere: ssh -L PORT:127.0.0.1:PORT HOST, with
a --port that you choose. A run without telemetry is measured while the page is served.
"""
_POLL_S = 0.5


def parser() -> argparse.ArgumentParser:
    result = Parser(
        prog="dragon dashboard",
        description="Serve a page that shows a run: what waits, what failed, charts, processes, a timeline.",
        epilog=_EPILOG,
    )
    result.add_argument("run", nargs="?", metavar="RUN", help="the run to show, or a folder with a recorded one")
    result.add_argument("--port", type=int, default=0, help="TCP port of this machine (default: any free port)")
    result.add_argument("--open", action="store_true", help="open the page in a browser")
    recorded = result.add_argument_group("of a recorded run")
    recorded.add_argument("-o", "--output", metavar="FILE", help="default: dashboard.html in the run's folder")
    node = "a node to show charts of; may be repeated"
    recorded.add_argument("--node", action="append", default=[], metavar="HOST", help=node)
    return result


def main(words: Sequence[str]) -> int:
    """Serve the page until the run ends, or Ctrl-C; write that of a recorded run. Returns the exit code."""
    arguments = parser().parse_args(words)
    if arguments.run is not None and os.path.isdir(arguments.run):
        _write(Path(arguments.run), arguments.output, arguments.node, arguments.open)
        return 0
    if arguments.output or arguments.node:
        parser().error(f"--output and --node: only for a recorded run, and {arguments.run!r} is not a folder of one")
    if not 0 <= arguments.port < 2**16:
        parser().error(f"--port {arguments.port}: ports go up to 65535")
    with watching.choose(arguments.run) as run:
        asyncio.run(_serve(run, arguments.port, arguments.open))
    return 0


def _write(folder: Path, output: str | None, hosts: Sequence[str], show: bool) -> None:
    recording = Recording(folder)
    page = recorded_page(recording, hosts)
    if output == "-":
        print(page)
        return
    path = Path(output) if output else recording.folder / "dashboard.html"
    with whole_file(path) as file:
        file.write_text(page)
    print(path)
    if show:
        _open(path.resolve().as_uri())


def _open(link: str) -> None:
    if not webbrowser.open(link):
        print("dragon dashboard: no browser can be opened here", file=sys.stderr)


async def _serve(run: watching.Watched, port: int, show: bool) -> None:
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    dashboard = Dashboard(run.ask_soon)
    server = await serve(port, dashboard.routes)
    link = dashboard.link(f"http://127.0.0.1:{server.port}")
    print(f"{run.command}: {link}", flush=True)
    if show:
        _open(link)
    while run.lives and not over.is_set():
        try:
            async with asyncio.timeout(_POLL_S):
                await over.wait()
        except TimeoutError:
            continue
    if not over.is_set():
        print("the run is over")
    server.close()
