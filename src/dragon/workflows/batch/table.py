"""The table of a batch: a CSV file with a line for each task that has ended."""

from __future__ import annotations

import csv
import os
import time
from contextlib import suppress

from dragon.runtime.log import runtime_log
from dragon.workflows.batch.order import Entry, State, uid_of
from dragon.workflows.batch.outcome import Failure, Outcome

log = runtime_log("batch")

COLUMNS = ("task", "name", "kind", "outcome", "node", "pid", "submitted", "ended", "seconds", "tries", "error")


class TaskTable:
    """Writes the file, which is made anew. Raises OSError if it cannot be opened."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.path.abspath(os.fspath(path))
        self._file = open(self.path, "w", 1, "utf-8", "backslashreplace", newline="")  # noqa: SIM115
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._over = False
        self._write(COLUMNS)

    def add(self, entry: Entry, outcome: Outcome) -> None:
        """Add the line of a task that has ended. `submitted` and `ended` are in seconds since 1970; `seconds` is how
        long its last try ran, with `node` and `pid` of its worker, which are empty if that was lost or never was."""
        how, error = "restored" if entry.restored else "done", ""
        if isinstance(outcome, Failure):
            how, error = "failed", outcome.brief
        node, pid, seconds = entry.place or ("", "", 0.0)
        tries = len(entry.faults) + (entry.state == State.SENT)
        task = uid_of(entry.key), entry.name, entry.kind.name.lower()
        times = f"{entry.submitted:.3f}", f"{time.time():.3f}", f"{seconds:.6f}" if entry.place else ""
        self._write((*task, how, node, pid, *times, tries, error))

    def _write(self, row: tuple[object, ...]) -> None:
        if self._over:
            return
        try:
            self._writer.writerow(row)
        except OSError as error:
            self._over = True
            log.warning("the table %s takes no more lines: %s", self.path, error)

    def close(self) -> None:
        """Write nothing more."""
        self._over = True
        with suppress(OSError):  # what could not be written was reported
            self._file.close()
