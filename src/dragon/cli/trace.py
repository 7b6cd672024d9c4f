"""`dragon trace`: makes a trace of a recorded run for Perfetto or Chrome."""

from __future__ import annotations

import argparse
import gzip
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dragon.commands import Parser
from dragon.files import whole_file
from dragon.telemetry.recording import Recording
from dragon.telemetry.trace import trace_events

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
    """Return the parser of the command line."""
    result = Parser(
        prog="dragon trace",
        description="Make a trace of a recorded run, for Perfetto or Chrome.",
        epilog=_EPILOG,
    )
    result.add_argument(
        "folder", type=Path, metavar="RUN_FOLDER", help="the folder of a run, or of several: the newest is used"
    )
    result.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="the file to write (default: trace.json.gz in the run's folder)",
    )
    return result


def main(words: Sequence[str]) -> int:
    """Write the trace, and print its path. Returns the exit code."""
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
