"""`dragon trace`: makes a trace of a recorded run for Perfetto or Chrome."""

from __future__ import annotations

import argparse
import gzip
import math
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dragon.commands import Parser
from dragon.files import whole_file
from dragon.infrastructure.metrics import Lifetime, Span
from dragon.infrastructure.structs import msgspec
from dragon.telemetry.recording import Recording

_LIFE, _FIRST_THREAD = 0, 1
_MIN_SHOWN_MICROSECONDS = 5.0  # the shortest shown duration
_TITLES = {
    "get": "gets from {}",
    "put": "puts into {}",
    "read": "reads {}",
    "join": "joins {}",
    "acquire": "acquires {}",
    "wait": "waits for {}",
    "task": "{}",
    "send": "sends {}",
    "receive": "receives {}",
}

Event = dict[str, Any]


class _Track:
    """A process of a run in a trace: a group of tracks, one for its lifetime and one for each of its threads."""

    def __init__(self, number: int, title: str, order: int) -> None:
        self.number = number
        self.first = math.inf  # when the first of its spans began
        self._title = title
        self._order = order
        self._threads: dict[int, int] = {}

    def thread(self, ident: int) -> int:
        return self._threads.setdefault(ident, len(self._threads) + _FIRST_THREAD)

    def descriptions(self) -> Iterator[Event]:
        yield {"ph": "M", "pid": self.number, "name": "process_name", "args": {"name": self._title}}
        yield {"ph": "M", "pid": self.number, "name": "process_sort_index", "args": {"sort_index": self._order}}
        names = {_LIFE: "life", **{tid: f"thread {tid}" for tid in self._threads.values()}}
        for tid, name in names.items():
            yield {"ph": "M", "pid": self.number, "tid": tid, "name": "thread_name", "args": {"name": name}}


class _Tracks:
    """The tracks of all processes. Several processes may have had the same process id, one after the other."""

    def __init__(self) -> None:
        self.all: list[_Track] = []
        self.lives: list[tuple[Lifetime, _Track]] = []
        self._by_pid: dict[tuple[str, int], list[tuple[Lifetime, _Track]]] = defaultdict(list)
        self._unknown: dict[tuple[str, int], _Track] = {}

    def add(self, life: Lifetime) -> None:
        """Make a track for a process. Those of the same process id must be added in the order of their starts."""
        track = self._new(f"{life.host}: {life.name} (puid {life.puid})")
        self.lives.append((life, track))
        self._by_pid[life.host, life.pid].append((life, track))

    def of(self, host: str, span: Span) -> _Track:
        """Return the track of the process of a span."""
        # Starts and ends of processes are reported with a small delay: a span may be over before the reported start.
        lives = self._by_pid[host, span.pid]
        for life, track in lives:
            if life.ended is None or span.end <= life.ended or life is lives[-1][0]:
                return track
        what = "messages" if span.link else f"pid {span.pid}"
        if (host, span.pid) not in self._unknown:
            self._unknown[host, span.pid] = self._new(f"{host}: {what}")
        return self._unknown[host, span.pid]

    def _new(self, title: str) -> _Track:
        track = _Track(len(self.all) + 1, title, len(self.all))
        self.all.append(track)
        return track


def trace_events(
    lifetimes: Iterable[Lifetime], spans: Iterable[tuple[str, Span]], start: float, end: float
) -> list[Event]:
    """Return the events of a run from `start` to `end` (seconds since 1970), in microseconds since its start.

    `spans` are pairs of the node's host and the span.
    """
    tracks = _Tracks()
    events: list[Event] = []
    for life in sorted(lifetimes, key=lambda life: (life.node, life.started)):
        tracks.add(life)
    for host, span in spans:
        track = tracks.of(host, span)
        track.first = min(track.first, span.start)
        place = {"pid": track.number, "tid": track.thread(span.thread), "ts": (span.start - start) * 1e6}
        title = _TITLES.get(span.what, span.what + " {}").format(span.name)
        duration = max((span.end - span.start) * 1e6, _MIN_SHOWN_MICROSECONDS if span.link else 0.0)
        outcome = {"args": {"failed": True}} if span.failed else {}
        events.append({**place, "ph": "X", "dur": duration, "name": title, "cat": span.what, **outcome})
        if span.link:
            # As text, since browsers round numbers of that size.
            arrow = {"id": f"{span.link:x}", "name": "message", "cat": "message"}
            events.append({**place, **arrow, **({"ph": "s"} if span.what == "send" else {"ph": "f", "bp": "e"})})
    descriptions = [event for track in tracks.all for event in track.descriptions()]
    return descriptions + [_life(life, track, start, end) for life, track in tracks.lives] + events


def _life(life: Lifetime, track: _Track, start: float, end: float) -> Event:
    begun, last = min(life.started, track.first), life.ended or end
    return {
        "ph": "X",
        "pid": track.number,
        "tid": _LIFE,
        "ts": (begun - start) * 1e6,
        "dur": max(last - begun, 0.0) * 1e6,
        "name": life.name,
        "cat": "process",
        "args": {"puid": life.puid, "pid": life.pid, "node": life.host, "exit code": life.code},
    }


_EPILOG = """\
examples:
  dragon --telemetry runs -T 5 train.py        record a run, and what its processes wait for and do
  dragon trace runs                            make a trace of the newest run in that directory
  dragon trace runs/20261121T140312Z-3fa9c1 -o train.json.gz

Open the file at https://ui.perfetto.dev, which does not upload it, or at chrome://tracing. There is a group of tracks
for each process: its lifetime; what each of its threads waited for, if at least 10 us; the tasks of pools. Those of
nodes show the messages that they sent to each other, with arrows. Times are those of each node's own clock.
"""


def parser() -> argparse.ArgumentParser:
    result = Parser(
        prog="dragon trace", description="Make a trace of a recorded run, for Perfetto or Chrome.", epilog=_EPILOG
    )
    folder = "the folder of a run, or of several: the newest is used"
    result.add_argument("folder", type=Path, metavar="RUN_FOLDER", help=folder)
    written = "the file to write (default: trace.json.gz in the run's folder)"
    result.add_argument("-o", "--output", type=Path, metavar="FILE", help=written)
    return result


def main(words: Sequence[str]) -> int:
    arguments = parser().parse_args(words)
    recording = Recording(arguments.folder)
    events = trace_events(recording.lifetimes(), recording.spans(), recording.start, recording.end)
    path = arguments.output or recording.folder / "trace.json.gz"
    trace = msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})
    with whole_file(path) as file:
        file.write_bytes(gzip.compress(trace) if path.suffix == ".gz" else trace)
    if not any(event.get("cat") not in (None, "process") for event in events):
        print("dragon trace: it has only the lifetimes of processes; record with -T 5 for more", file=sys.stderr)
    print(path)
    return 0
