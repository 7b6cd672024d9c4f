"""A line that says how far a batch is."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import NamedTuple

_WIDTH = 24  # characters of the bar
_LINE_EVERY_S = 10.0  # where lines cannot be written over


class Counts(NamedTuple):
    """The tasks of a process: how many have ended well, run, wait and failed."""

    done: int
    running: int
    waiting: int
    failed: int


class Line:
    """The line, written over itself in a terminal and in a notebook; elsewhere a new one every ten seconds."""

    def __init__(self, counts: Counts) -> None:
        self._file = sys.stderr
        self._overwrites = self._file.isatty() or "ipykernel" in sys.modules
        self._began = self._shown = time.monotonic()
        self._ended_before = counts.done + counts.failed
        self._length = 0

    def show(self, counts: Counts, last: bool = False) -> None:
        """Show the counts; the `last` ones stay."""
        now = time.monotonic()
        if not self._overwrites and not last and now - self._shown < _LINE_EVERY_S:
            return
        self._shown = now
        text = self._text(counts, now - self._began)
        if self._overwrites:
            self._file.write(f"\r{text.ljust(self._length)}" + "\n" * last)
            self._length = len(text)
        else:
            self._file.write(f"{text}\n")
        self._file.flush()

    def _text(self, counts: Counts, seconds: float) -> str:
        ended, total = counts.done + counts.failed, sum(counts)
        rate = (ended - self._ended_before) / seconds if seconds > 0 else 0.0
        full = _WIDTH * ended // total if total else _WIDTH
        left = f", {_time((total - ended) / rate)} left" if rate and ended < total else ""
        return (
            f"[{'#' * full}{'.' * (_WIDTH - full)}] {ended} of {total} tasks: {counts.running} run, "
            f"{counts.waiting} wait, {counts.failed} failed; {rate:.3g}/s, {_time(seconds)}{left}"
        )


def _time(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
