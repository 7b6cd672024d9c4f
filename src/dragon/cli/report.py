"""`dragon report`: what a run has recorded, as a page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from dragon.files import whole_file
from dragon.telemetry.recording import Recording
from dragon.telemetry.report import report

__all__ = ["main", "parser"]

_EPILOG = """\
examples:
  dragon --telemetry runs train.py             record a run in the directory runs
  dragon report runs                           a page of the newest run that is there
  dragon report runs/20261121T140312Z-3fa9c1   of that one
  dragon report runs -o train.html             to that file; - is stdout
  dragon report runs --node gpu7 --node gpu8   with charts of these nodes, of a run that had very many

The page is one file, which needs no network: keep it, or send it to somebody. It shows the charts of the nodes, their
GPUs and the program's own metrics, the processes with their exit codes, and when each of them lived. A run that was
killed or that runs still can be looked at as well. For questions of your own: dragon.telemetry.AnalysisClient(FOLDER),
or anything that reads Parquet.
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="dragon report",
        description="Make a page of the telemetry that a run has recorded.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("folder", type=Path, metavar="RUN_FOLDER", help="of a run, or of several: the newest is taken")
    result.add_argument("-o", "--output", metavar="FILE", help="where to (default: report.html in the run's folder)")
    result.add_argument("--node", action="append", default=[], metavar="HOST", help="a node to have charts of")
    return result


def main(words: Sequence[str]) -> int:
    """Write the page, and say where; the exit code."""
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
