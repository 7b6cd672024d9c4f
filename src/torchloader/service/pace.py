"""How fast applications trained, second by second, as a file."""

from __future__ import annotations

import csv
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
        if new:
            self._writer.writerow(COLUMNS)

    def write(self, now: float, name: str, pace: Pace, workers: int) -> None:
        """What an application does at `now`, in seconds since the workload began, with so many workers per device."""
        loss = "" if pace.loss is None else f"{pace.loss:.5f}"
        self._writer.writerow(
            [f"{now:.2f}", name, pace.iteration, f"{pace.samples:.2f}", f"{pace.waiting:.4f}", workers, loss]
        )

    def close(self) -> None:
        """Write no more."""
        self._file.close()
