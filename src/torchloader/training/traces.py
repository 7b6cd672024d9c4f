"""The traces of an application: what each rank did and how long it took, in files that are continued after a pause.

`trace-NAME-iterations-RANK.csv` has a row for each iteration, `trace-NAME-heartbeats-RANK.csv` one about each second,
`trace-NAME-workers-RANK.csv` one for each change of the loading workers; `trace-NAME-summary-RANK.json` sums them up.
Times are in seconds.
"""

from __future__ import annotations

import csv
import json
import os
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

__all__ = ["HEARTBEATS", "ITERATIONS", "PHASES", "WORKERS", "Traces"]

PHASES = ("dataloading", "datatransfer", "forward", "backward", "update")
ITERATIONS = ("iteration", *PHASES, "loss")
HEARTBEATS = ("time", "iteration", "samples", "waiting", "computing", "workers")
WORKERS = ("time", "iteration", "workers", "reason", "seconds")


class Traces:
    """The traces of one rank of an application, in a folder that is made where there is none.

    What is there of an earlier part of the application is continued after `iteration`: rows of iterations that were
    done after the last checkpoint, and are done again, are removed.
    """

    def __init__(self, folder: str | Path, application: str, rank: int = 0, iteration: int = 0) -> None:
        self._folder, self._application, self._rank = Path(folder), application, rank
        self._folder.mkdir(parents=True, exist_ok=True)
        self._iterations = self._open("iterations", ITERATIONS, iteration)
        self._heartbeats = self._open("heartbeats", HEARTBEATS, iteration)
        self._workers = self._open("workers", WORKERS, iteration)

    def path(self, kind: str, ending: str = "csv") -> Path:
        """Of one of its files."""
        return self._folder / f"trace-{self._application}-{kind}-{self._rank}.{ending}"

    def iteration(self, number: int, phases: Sequence[float], loss: float | None) -> None:
        """Note an iteration; `phases` are the seconds of PHASES."""
        times = ",".join(f"{seconds:.6f}" for seconds in phases)
        self._iterations.write(f"{number},{times},{'' if loss is None else f'{loss:.6g}'}\n")

    def heartbeat(
        self, time: float, iteration: int, samples: int, waiting: float, computing: float, workers: int
    ) -> None:
        """Note what was done since the heartbeat before; on disk are then all rows so far."""
        self._heartbeats.write(f"{time:.3f},{iteration},{samples},{waiting:.6f},{computing:.6f},{workers}\n")
        for file in (self._iterations, self._heartbeats):
            file.flush()

    def workers(self, time: float, iteration: int, workers: int, reason: str, seconds: float) -> None:
        """Note that so many workers load from now on, and how long the change took."""
        csv.writer(self._workers, lineterminator="\n").writerow(
            (f"{time:.3f}", iteration, workers, " ".join(reason.split()), f"{seconds:.6f}")
        )
        self._workers.flush()

    def close(self) -> None:
        """Close the files and sum up the whole application, earlier parts too."""
        for file in (self._iterations, self._heartbeats, self._workers):
            file.close()
        text = json.dumps(self._summary(), indent=2) + "\n"
        path = self.path("summary", "json")
        unfinished = path.with_name(f".{path.name}")
        unfinished.write_text(text)
        unfinished.replace(path)

    def _summary(self) -> dict[str, object]:
        rows = list(self._rows("iterations"))
        beats = list(self._rows("heartbeats"))
        columns = {phase: [float(row[place]) for row in rows] for place, phase in enumerate(PHASES, 1)}
        samples = sum(int(row[2]) for row in beats)
        waiting, computing = (sum(float(row[place]) for row in beats) for place in (3, 4))
        seconds = waiting + computing
        losses = [float(row[-1]) for row in rows if row[-1]]
        return {
            "application": self._application,
            "rank": self._rank,
            "iterations": len(rows),
            "samples": samples,
            "seconds": seconds,
            "samples_per_second": samples / seconds if seconds else None,
            "busy": computing / seconds if seconds else None,
            "loss": losses[-1] if losses else None,
            "worker_changes": sum(1 for _ in self._rows("workers")),
            "phases": {phase: _spread(times) for phase, times in columns.items()},
        }

    def _rows(self, kind: str) -> Iterable[list[str]]:
        with self.path(kind).open(newline="") as file:
            reader = csv.reader(file)
            next(reader)
            yield from reader

    def _open(self, kind: str, columns: Sequence[str], iteration: int) -> TextIO:
        path = self.path(kind)
        if path.exists():
            self._cut(path, columns, iteration)
        else:
            path.write_text(f"{','.join(columns)}\n")
        return path.open("a", newline="")

    def _cut(self, path: Path, columns: Sequence[str], iteration: int) -> None:
        """Leave the rows up to an iteration. The last one may be torn: a process that was killed wrote it."""
        place = columns.index("iteration")
        unfinished = path.with_name(f".{path.name}")
        with path.open(newline="") as old, unfinished.open("w", newline="") as new:
            new.write(f"{','.join(columns)}\n")
            for line in list(old)[1:]:
                cells = line.split(",")
                whole = line.endswith("\n") and len(cells) >= len(columns)
                if whole and cells[place].isdigit() and int(cells[place]) <= iteration:
                    new.write(line)
            new.flush()
            os.fsync(new.fileno())
        unfinished.replace(path)


def _spread(times: list[float]) -> dict[str, float] | None:
    if not times:
        return None
    last = statistics.quantiles(times, n=20, method="inclusive")[-1] if len(times) > 1 else times[0]
    return {"mean": statistics.fmean(times), "median": statistics.median(times), "percentile_95": last}
