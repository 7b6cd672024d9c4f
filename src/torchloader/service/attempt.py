"""The master's record of one start of an application: which ranks have begun, their reports, and how they ended."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dragon.files import append_bytes
from torchloader.service.messages import Ended
from torchloader.training.protocol import Cancelled, Finished, Paused, Progress, Report, Resized, Started


@dataclass
class Pace:
    """The progress of an application's ranks in about the last second, summed up."""

    iteration: int = 0
    samples: float = 0.0  # per second, over all devices
    waiting: float = 0.0  # fraction of the time, mean over the devices
    loss: float | None = None


@dataclass
class Attempt:
    """One start of an application."""

    number: int  # the number of this start of the application
    nodes: frozenset[str]  # the nodes with ranks of it
    size: int  # the number of ranks on all of them
    heard: float  # when a rank last reported, in seconds on the master's clock
    started: set[int] = field(default_factory=set)
    resized: set[int] = field(default_factory=set)
    left: dict[int, type[Report]] = field(default_factory=dict)  # by rank: the type of its last report
    codes: dict[str, Mapping[int, int]] = field(default_factory=dict)  # of nodes whose ranks have ended
    cause: str = ""
    killed: bool = False  # a rank was ended by a signal: a retry may succeed
    cancelled: bool = False
    done: dict[int, int] = field(default_factory=dict)  # iterations, by rank
    latest: dict[int, Progress] = field(default_factory=dict)

    def note(self, report: Report, now: float) -> None:
        """Process a rank's report."""
        self.heard = now
        match report:
            case Started():
                self.started.add(report.rank)
            case Progress():
                self.started.add(report.rank)  # its first report may have been sent to an earlier master
                self.latest[report.rank] = report
                self.done[report.rank] = report.iteration
            case Resized():
                self.resized.add(report.rank)
            case Paused() | Finished() | Cancelled():
                self.left[report.rank] = type(report)
                self.done[report.rank] = report.iteration

    def end(self, ended: Ended, now: float) -> bool:
        """Note that all its ranks on a node have ended. Returns whether this is the first failure that is known."""
        for report in ended.left.values():
            self.note(report, now)
        self.codes[ended.node] = ended.codes
        self.cancelled = self.cancelled or ended.cancelled
        first = bool(ended.cause) and not self.cause
        # Ranks that fail because another one was killed may end before it.
        if first or (ended.killed and not self.killed):
            self.cause = ended.cause
        self.killed = self.killed or ended.killed
        return first

    @property
    def has_started(self) -> bool:
        """Whether all ranks train."""
        return len(self.started) >= self.size

    @property
    def has_spoken(self) -> bool:
        """Whether a rank has ever reported; ranks of a program without a session never do."""
        return bool(self.started or self.left)

    @property
    def iteration(self) -> int:
        """The iterations that all ranks have completed."""
        return min(self.done.values(), default=0)

    @property
    def pace(self) -> Pace:
        """The current pace, from the latest reports of all ranks."""
        reports = list(self.latest.values())
        times = [each.waiting + each.computing for each in reports]
        samples = sum(each.samples / time for each, time in zip(reports, times, strict=True) if time > 0)
        waiting = sum(each.waiting / time for each, time in zip(reports, times, strict=True) if time > 0)
        losses = [each.loss for each in reports if each.loss is not None]
        return Pace(self.iteration, samples, waiting / max(1, len(reports)), losses[0] if losses else None)

    @property
    def is_over(self) -> bool:
        """Whether all its ranks on all nodes have ended."""
        return self.codes.keys() >= self.nodes

    def all_left(self, how: type[Report]) -> bool:
        """Return whether every rank reported that it leaves in this way, and exited with code 0."""
        return len(self.left) == self.size and set(self.left.values()) == {how} and self.ended_well

    @property
    def ended_well(self) -> bool:
        """Whether every rank that has ended exited with code 0."""
        return not any(code for codes in self.codes.values() for code in codes.values())


PACE = "pace.csv"
COLUMNS = ("time", "application", "iteration", "samples_per_second", "waiting", "workers", "loss")


class PaceFile:
    """A CSV file in the folder of a run; an existing one is appended to. If it cannot be written, as on a full disk,
    this is reported once, and jobs continue without it."""

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
