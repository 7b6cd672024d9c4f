"""Common parts of commands that list runs: their parser, times and tables."""

from __future__ import annotations

import argparse
import time

from dragon.commands import Parser


def parser(name: str, description: str, epilog: str, what: str) -> argparse.ArgumentParser:
    """Return the parser of a command that shows all runs, or one; `what` is the help of that argument."""
    made = Parser(
        prog=f"dragon {name}",
        description=description,
        epilog=epilog,
    )
    made.add_argument("run", nargs="?", metavar="RUN", help=what)
    made.add_argument("--json", action="store_true", help="print JSON")
    return made


def moment(seconds: float) -> str:
    """Format a time, given in seconds since 1970: the time of day, with the date unless it is today."""
    then = time.localtime(seconds)
    today = then[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M", then)


def table(rows: list[list[str]]) -> str:
    """Format rows of cells as columns; the last column is not padded."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join("  ".join([*map(str.ljust, row, widths), row[-1]]).rstrip() for row in rows)
