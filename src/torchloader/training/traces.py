"""The traces of an application: what each rank did and how long it took, in files that are continued after a pause.

`trace-NAME-iterations-RANK.csv` has a row for each iteration, `trace-NAME-heartbeats-RANK.csv` one for about each
second, `trace-NAME-workers-RANK.csv` one for each change of the loading workers; `trace-NAME-summary-RANK.json` sums
them up. Times are in seconds.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from dragon.files import append_bytes, whole_file, write_bytes

PHASES = ("dataloading", "datatransfer", "forward", "backward", "update")
ITERATIONS = ("iteration", *PHASES, "loss")
HEARTBEATS = ("time", "iteration", "samples", "waiting", "computing", "workers")
WORKERS = ("time", "iteration", "workers", "reason", "seconds")

_COLUMNS = {"iterations": ITERATIONS, "heartbeats": HEARTBEATS, "workers": WORKERS}
_log = logging.getLogger(__name__)


class Traces:
    """The traces of one rank of an application. Existing ones are continued after `iteration`: later rows, which are
    done again, are removed. If they cannot be written, as on a full disk, this is logged once, and training continues
    without them."""

    def __init__(self, folder: str | Path, application: str, rank: int = 0, iteration: int = 0) -> None:
        self._folder, self._application, self._rank = Path(folder), application, rank
        self._folder.mkdir(parents=True, exist_ok=True)
        # Rows are buffered here, since closing buffered files would raise again if the disk is full.
        self._rows = {kind: io.StringIO() for kind in _COLUMNS}
        self._files: dict[str, io.FileIO] = {}
        self._broken = False
        with self._writing():
            for kind, columns in _COLUMNS.items():
                self._files[kind] = self._open(kind, columns, iteration)

    def path(self, kind: str, ending: str = "csv") -> Path:
        return self._folder / f"trace-{self._application}-{kind}-{self._rank}.{ending}"

    def iteration(self, number: int, phases: Sequence[float], loss: float | None) -> None:
        """Add an iteration; `phases` are the seconds of PHASES."""
        times = (f"{seconds:.6f}" for seconds in phases)
        self._add("iterations", number, *times, "" if loss is None else f"{loss:.6g}")

    def heartbeat(
        self, time: float, iteration: int, samples: int, waiting: float, computing: float, workers: int
    ) -> None:
        """Add what was done since the last heartbeat, and write all rows to the disk."""
        self._add("heartbeats", f"{time:.3f}", iteration, samples, f"{waiting:.6f}", f"{computing:.6f}", workers)
        self._flush("iterations", "heartbeats")

    def workers(self, time: float, iteration: int, workers: int, reason: str, seconds: float) -> None:
        """Add a change to `workers` loading workers, and the seconds that it took."""
        self._add("workers", f"{time:.3f}", iteration, workers, " ".join(reason.split()), f"{seconds:.6f}")
        self._flush("workers")

    def close(self) -> None:
        """Close the files and write a summary of the whole application, including earlier parts."""
        self._flush(*_COLUMNS)
        for file in self._files.values():
            file.close()
        if not self._broken:
            with self._writing(), whole_file(self.path("summary", "json")) as unfinished:
                write_bytes(unfinished, f"{json.dumps(self._summary(), indent=2)}\n".encode())

    def _add(self, kind: str, *row: object) -> None:
        csv.writer(self._rows[kind], lineterminator="\n").writerow(row)

    def _flush(self, *kinds: str) -> None:
        for kind in kinds:
            data, self._rows[kind] = self._rows[kind].getvalue().encode(), io.StringIO()
            if data and not self._broken:
                with self._writing():
                    append_bytes(self._files[kind].fileno(), data, self.path(kind))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._broken = True
            where = error.filename or self._folder
            _log.warning("training continues without traces: %s: %s", where, error.strerror or error)

    def _summary(self) -> dict[str, object]:
        tables = []
        for kind in _COLUMNS:
            with self.path(kind).open(newline="") as file:
                tables.append(list(csv.DictReader(file)))
        rows, beats, changes = tables
        samples = sum(int(row["samples"]) for row in beats)
        waiting, computing = (sum(float(row[column]) for row in beats) for column in ("waiting", "computing"))
        seconds = waiting + computing
        losses = [float(row["loss"]) for row in rows if row["loss"]]
        return {
            "application": self._application,
            "rank": self._rank,
            "iterations": len(rows),
            "samples": samples,
            "seconds": seconds,
            "samples_per_second": samples / seconds if seconds else None,
            "busy": computing / seconds if seconds else None,
            "loss": losses[-1] if losses else None,
            "worker_changes": len(changes),
            "phases": {phase: _spread([float(row[phase]) for row in rows]) for phase in PHASES},
        }

    def _open(self, kind: str, columns: Sequence[str], iteration: int) -> io.FileIO:
        """Open a file for further rows, after those up to an iteration that it has already."""
        path, place, rows = self.path(kind), columns.index("iteration"), [f"{','.join(columns)}\n"]
        if path.exists():
            with path.open(newline="") as old:
                for line in list(old)[1:]:
                    cells = line.split(",")
                    whole = line.endswith("\n") and len(cells) >= len(columns)
                    if whole and cells[place].isdigit() and int(cells[place]) <= iteration:
                        rows.append(line)
        with whole_file(path) as unfinished, unfinished.open("w", newline="") as new:
            new.writelines(rows)
            new.flush()
            os.fsync(new.fileno())
        return io.FileIO(path, "a")


def _spread(times: list[float]) -> dict[str, float] | None:
    if not times:
        return None
    last = statistics.quantiles(times, n=20, method="inclusive")[-1] if len(times) > 1 else times[0]
    return {"mean": statistics.fmean(times), "median": statistics.median(times), "percentile_95": last}


class _Moment:
    """A point in the work of a CPU, where calls are synchronous, with the methods of torch.cuda.Event."""

    def record(self) -> None:
        self.seconds = time.perf_counter()

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end_event: _Moment) -> float:  # in milliseconds
        return 1000 * (end_event.seconds - self.seconds)


_Mark = _Moment | torch.cuda.Event


@dataclass
class Iteration:
    """One iteration: the seconds it waited for data, its number, its marks by phase, its loss."""

    waited: float
    number: int = 0
    marks: list[tuple[str, _Mark, _Mark]] = field(default_factory=list)
    loss: Tensor | float | None = None

    @property
    def over(self) -> bool:
        return all(end.query() for _, _, end in self.marks)

    def seconds(self) -> list[float]:
        """Return the seconds of each of PHASES; waits for the device."""
        found = dict.fromkeys(PHASES, 0.0)
        found["dataloading"] = self.waited
        for phase, start, end in self.marks:
            end.synchronize()
            found[phase] += start.elapsed_time(end) / 1000  # type: ignore[arg-type]
        return list(found.values())


class Phases:
    """The iterations of a rank that are in progress or not yet recorded."""

    def __init__(self, device: torch.device) -> None:
        self._gpu = device.type == "cuda"
        self._current = Iteration(0.0)
        self._over: deque[Iteration] = deque()

    def begin(self, waited: float) -> None:
        self._current = Iteration(waited)

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Measure the device's work in the block as that phase; several blocks of a phase are added."""
        if phase not in PHASES[1:]:
            raise ValueError(f"there is no phase {phase!r}: there are {', '.join(PHASES[1:])}")
        start, end = self._mark(), self._mark()
        start.record()
        yield
        end.record()
        self._current.marks.append((phase, start, end))

    def record(self, loss: Tensor | float) -> None:
        self._current.loss = loss.detach() if isinstance(loss, Tensor) else loss

    def end(self, number: int) -> None:
        """End the present iteration; the device may not have completed it."""
        self._current.number = number
        self._over.append(self._current)

    def done(self, wait: bool = False) -> Iterator[Iteration]:
        """Yield the iterations that the device has completed, each once and in order; with `wait` all of them."""
        while self._over and (wait or self._over[0].over):
            yield self._over.popleft()

    def _mark(self) -> _Mark:
        return torch.cuda.Event(enable_timing=True) if self._gpu else _Moment()  # type: ignore[no-untyped-call]
