"""`dragon report`: makes a page of a recorded run."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from dragon.commands import Parser
from dragon.files import whole_file
from dragon.telemetry.recording import Recording
from dragon.telemetry.report import report

_EPILOG = """\
examples:
  dragon --telemetry runs train.py             record a run in the directory runs
  dragon report runs                           make a page of the newest run in that directory
  dragon report runs/20261121T140312Z-3fa9c1   make a page of that run
  dragon report runs -o train.html             write it to that file; - is stdout
  dragon report runs --node gpu7 --node gpu8   with charts of these nodes, of a run that had very many

The page is one self-contained file. It shows charts of the nodes, their GPUs and the program's own metrics, the
processes with their exit codes, and their lifetimes. A run that was killed, or has not ended, can be shown as well. For
other queries use dragon.telemetry.AnalysisClient(FOLDER), or any program that reads Parquet.
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = Parser(
        prog="dragon report",
        description="Make a page of the telemetry that a run has recorded.",
        epilog=_EPILOG,
    )
    result.add_argument(
        "folder", type=Path, metavar="RUN_FOLDER", help="the folder of a run, or of several: the newest is used"
    )
    result.add_argument(
        "-o", "--output", metavar="FILE", help="the file to write (default: report.html in the run's folder)"
    )
    result.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="HOST",
        help="a node to show charts of; may be given several times",
    )
    return result


def main(words: Sequence[str]) -> int:
    """Write the page, and print its path. Returns the exit code."""
    arguments = parser().parse_args(words)
    recording = Recording(arguments.folder)
    page = report(recording, arguments.node)
    if arguments.output == "-":
        print(page)
        return 0
    path = Path(arguments.output) if arguments.output else recording.folder / "report.html"
    with whole_file(path) as file:
        file.write_text(page)
    print(path)
    return 0
