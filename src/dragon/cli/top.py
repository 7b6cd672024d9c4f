"""`dragon top`: shows a run in this terminal."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dragon.cli import watching
from dragon.commands import Parser, need

if TYPE_CHECKING:
    from dragon.top import Snapshot

_EPILOG = """\
examples:
  dragon top                  your run on this machine, if there is one
  dragon top 3fa9c1           one of several (see `dragon ps`)
  dragon top runs             the newest run that was recorded with --telemetry runs, at its end; the arrow keys move
                              back and forth in time

keys: 1 to 5 choose the table, s sorts by the next column, r reverses, / filters rows, q quits. A click on a column
sorts too. A run without telemetry is measured while it is shown.
"""


def parser() -> argparse.ArgumentParser:
    result = Parser(
        prog="dragon top",
        description="Show a run's nodes, GPUs, processes, queues and pools in this terminal, live.",
        epilog=_EPILOG,
    )
    result.add_argument("run", nargs="?", metavar="RUN", help="the run to show, or a folder with a recorded one")
    delay = "refresh interval (default: 1)"
    result.add_argument("-d", "--delay", type=float, default=1.0, metavar="SECONDS", help=delay)
    return result


def main(words: Sequence[str]) -> int:
    """Show the run until q is pressed or it ends. Returns the exit code."""
    arguments = parser().parse_args(words)
    if not arguments.delay >= 0.1:
        parser().error(f"--delay {arguments.delay}: the shortest is 0.1 s")
    need("it", "textual", "telemetry")
    if not os.isatty(1):
        print("dragon top: needs a terminal; `dragon ps` and `dragon dashboard DIR` write to files", file=sys.stderr)
        return 1
    from dragon.top import Top, TopOfRecording

    if arguments.run is not None and os.path.isdir(arguments.run):
        recorded = watching.Recorded(Path(arguments.run))
        top: Top = TopOfRecording(_look_at(recorded), recorded.move)
        top.run()
    else:
        with watching.choose(arguments.run) as run:
            top = Top(_look_at(run), arguments.delay)
            top.run()
    return top.return_code or 0


def _look_at(run: watching.Watched | watching.Recorded) -> Callable[[], Awaitable[Snapshot]]:
    from dragon.top import take

    return lambda: take(run.ask_soon, run.now)
