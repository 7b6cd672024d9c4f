"""Records how fast applications trained, second by second, in a file."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from dragon.files import append_bytes
from torchloader.service.attempt import Pace

PACE = "pace.csv"
COLUMNS = ("time", "application", "iteration", "samples_per_second", "waiting", "workers", "loss")


class PaceFile:
    """A CSV file in the folder of a run; an existing one is appended to.

    If it cannot be written, as on a full disk, this is reported once, and jobs continue without it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / PACE
        self._file = -1
        try:
            # Unbuffered: otherwise close() would raise again for buffered rows if the disk is full.
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._begin()
        except OSError as error:
            self._give_up(error)

    def _begin(self) -> None:
        """Write the header, or end an incomplete last row."""
        size = os.fstat(self._file).st_size
        if size < len(_encoded(COLUMNS)):
            if size:
                os.ftruncate(self._file, 0)
            self._append(COLUMNS)
        elif os.pread(self._file, 1, size - 1) != b"\n":
            self._append(())

    def write(self, now: float, name: str, pace: Pace, workers: int) -> None:
        """Write a row for an application. `now` is in seconds since the workload began, `workers` is per device."""
        loss = "" if pace.loss is None else f"{pace.loss:.5f}"
        self._append([f"{now:.2f}", name, pace.iteration, f"{pace.samples:.2f}", f"{pace.waiting:.4f}", workers, loss])

    def _append(self, row: Sequence[object]) -> None:
        if self._file < 0:
            return
        try:
            append_bytes(self._file, _encoded(row), self._path)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.close()
        told = f"{self._path}: {error.strerror}"
        print(f"torchloader: how fast jobs train is not written any more: {told}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _encoded(row: Sequence[object]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerow(row)
    return text.getvalue().encode()
