"""What the master knows of one start of an application: the reports of its ranks, and the curve learned from them."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dragon.files import append_bytes
from torchloader.prediction.curve import Belief, Curve, Guess
from torchloader.prediction.measured import Interval, Measured
from torchloader.service.messages import Ended
from torchloader.training.protocol import Leaves, Progress, Report, Resized, Started


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

    number: int  # of this start
    nodes: frozenset[str]  # with ranks of it
    size: int  # the number of ranks on all of them
    heard: float  # when a rank last reported, in seconds on the master's clock
    started: set[int] = field(default_factory=set)
    resized: set[int] = field(default_factory=set)
    left: dict[int, str] = field(default_factory=dict)  # by rank: how it left
    codes: dict[str, dict[int, int]] = field(default_factory=dict)  # of nodes whose ranks have ended
    cause: str = ""
    killed: bool = False  # a rank was ended by a signal: a retry may succeed
    cancelled: bool = False
    done: dict[int, int] = field(default_factory=dict)  # iterations, by rank
    latest: dict[int, Progress] = field(default_factory=dict)

    def note(self, report: Report, now: float) -> None:
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
            case Leaves():
                self.left[report.rank] = report.how
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
        return len(self.started) >= self.size

    @property
    def has_reported(self) -> bool:
        """Whether a rank has ever reported; ranks of a program without a session never do."""
        return bool(self.started or self.left)

    @property
    def iteration(self) -> int:
        return min(self.done.values(), default=0)

    @property
    def pace(self) -> Pace:
        timed = [(each, each.waiting + each.computing) for each in self.latest.values()]
        samples = sum(each.samples / time for each, time in timed if time > 0)
        waiting = sum(each.waiting / time for each, time in timed if time > 0)
        loss = next((each.loss for each, _ in timed if each.loss is not None), None)
        return Pace(self.iteration, samples, waiting / max(1, len(timed)), loss)

    @property
    def is_over(self) -> bool:
        return self.codes.keys() >= self.nodes

    def all_left(self, how: str) -> bool:
        """Return whether every rank reported that it leaves in this way, and exited with code 0."""
        return len(self.left) == self.size and set(self.left.values()) == {how} and self.ended_well

    @property
    def ended_well(self) -> bool:
        """Whether every rank that has ended exited with code 0."""
        return not any(code for codes in self.codes.values() for code in codes.values())


_NEWS = 0.1  # relative change of the ceiling or the loading rate that is reported to the scheduler
_SURE = 3  # intervals before anything is reported
_HARDLY = 0.02  # fraction of a worker's time per sample by which each other worker delays it


class Learning:
    """The curve of one application, over all its starts."""

    def __init__(self) -> None:
        self._measured: Measured | None = None
        self._intervals = 0
        self._workers: dict[int, int] = {}
        self._reported: Curve | None = None

    def observe(self, report: Progress) -> None:
        """Add a rank's report. An interval in which the number of workers changed is ignored."""
        seconds = report.waiting + report.computing
        steady = self._workers.get(report.rank) == report.workers
        self._workers[report.rank] = report.workers
        if not steady or report.workers < 1 or seconds <= 0 or report.samples <= 0:
            return
        self._measured = self._measured or Measured(_guess(report))
        waited = min(report.waiting, seconds)
        self._measured.observe(Interval(report.workers, report.samples, seconds, waited, report.service))
        self._intervals += 1

    def news(self, sharers: int) -> Curve | None:
        """Return the curve of a device that is not shared, if it is known and differs from the last one returned."""
        if self._measured is None or self._intervals < _SURE or not self._measured.known:
            return None
        alone = self._measured.curve().scaled(max(1, sharers))
        if self._reported is not None and not _differs(self._reported, alone):
            return None
        self._reported = alone
        return alone


def _guess(report: Progress) -> Guess | None:
    """Return a vague prior from one report, with hardly any contention among workers. Without it a line through similar
    numbers of workers would be arbitrary elsewhere."""
    if report.service is None or report.computing <= 0:
        return None
    compute, service = report.computing / report.samples, report.service
    return Guess(Belief(compute, compute**2), Belief(service, service**2), Belief(0.0, (_HARDLY * service) ** 2))


def _differs(one: Curve, other: Curve) -> bool:
    pairs = [(one.ceiling, other.ceiling), (one.loading(1), other.loading(1)), (one.loading(8), other.loading(8))]
    return any(abs(before - after) > _NEWS * before for before, after in pairs)


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
            size = os.fstat(self._file).st_size
            if size < len(_encoded(COLUMNS)):
                os.ftruncate(self._file, 0)
                self._append(COLUMNS)
            elif os.pread(self._file, 1, size - 1) != b"\n":
                self._append(())  # ends an incomplete last row
        except OSError as error:
            self._give_up(error)

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
        reason = f"{self._path}: {error.strerror}"
        print(f"torchloader: how fast jobs train is not written any more: {reason}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _encoded(row: Sequence[object]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerow(row)
    return text.getvalue().encode()
