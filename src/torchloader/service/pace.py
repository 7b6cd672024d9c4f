"""How fast applications trained, second by second, as a file."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from torchloader.service.attempt import Pace

__all__ = ["COLUMNS", "PACE", "PaceFile"]

PACE = "pace.csv"
COLUMNS = ("time", "application", "iteration", "samples_per_second", "waiting", "workers", "loss")


class PaceFile:
    """A CSV in the folder of a run; one that is there is added to."""

    def __init__(self, folder: Path) -> None:
        new = not (folder / PACE).exists()
        self._file = (folder / PACE).open("a", newline="", buffering=1)
        self._writer = csv.writer(self._file)
        self._broken = False
        if new:
            self._writer.writerow(COLUMNS)

    def write(self, now: float, name: str, pace: Pace, workers: int) -> None:
        """What an application does at `now`, in seconds since the workload began, with so many workers per device."""
        if self._broken:
            return
        loss = "" if pace.loss is None else f"{pace.loss:.5f}"
        row = [f"{now:.2f}", name, pace.iteration, f"{pace.samples:.2f}", f"{pace.waiting:.4f}", workers, loss]
        try:
            self._writer.writerow(row)
        except OSError as error:
            # Jobs go on without it.
            self._broken = True
            print(f"torchloader: how fast jobs train is not written any more: {error}", file=sys.stderr)

    def close(self) -> None:
        """Write no more."""
        self._file.close()
