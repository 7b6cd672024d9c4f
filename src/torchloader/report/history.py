"""Reconstructs a run from its event log and measurements."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torchloader.scheduling.application import ENDED, HOLDING, State
from torchloader.scheduling.log import Event, read
from torchloader.service.attempt import PACE
from torchloader.service.settings import Settings


@dataclass(frozen=True, slots=True)
class Span:
    """A period of an application in one state, in seconds; if the state continues, `end` is the last known time."""

    state: State
    start: float
    end: float
    reason: str


@dataclass(frozen=True, slots=True)
class Moment:
    """A measurement over about a second: samples/s over all devices, and the fraction of time spent waiting."""

    time: float
    samples: float
    waiting: float
    iteration: int


@dataclass
class Life:
    """The history of one application."""

    name: str
    spans: list[Span] = field(default_factory=list)
    workers: list[tuple[float, int]] = field(default_factory=list)  # over all devices, from a time on
    pace: list[Moment] = field(default_factory=list)
    devices: int = 1
    batch: int = 1
    iterations: float = 0.0

    @property
    def arrival(self) -> float:
        """When it was submitted, in seconds."""
        return self.spans[0].start

    @property
    def end(self) -> float:
        """When it ended, or the last known time, in seconds."""
        return self.spans[-1].start if self.spans[-1].state in ENDED else self.spans[-1].end

    @property
    def seconds(self) -> float:
        """The seconds from arrival to end."""
        return self.end - self.arrival

    @property
    def throughput(self) -> float:
        """Samples per second while it held devices."""
        held = sum(span.end - span.start for span in self.spans if span.state in HOLDING)
        return self.iterations * self.batch / held if held > 0 else 0.0

    @property
    def busy(self) -> float | None:
        """The fraction of its training time in which it did not wait for data; None if nothing was measured."""
        return 1 - sum(each.waiting for each in self.pace) / len(self.pace) if self.pace else None


@dataclass(frozen=True, slots=True)
class Summary:
    """The key figures of a run.

    Attributes:
        jobs: applications.
        failed: applications that failed.
        completion: mean seconds from an application's arrival to its end.
        makespan: seconds from the first arrival to the last end.
        throughput: samples per second over all applications.
        busy: fraction of time in which devices computed; None if nothing was measured.
        resizes: changes of the number of workers.
    """

    jobs: int
    failed: int
    completion: float
    makespan: float
    throughput: float
    busy: float | None
    resizes: int


@dataclass
class History:
    """The history of a run."""

    name: str
    lives: dict[str, Life]

    @property
    def end(self) -> float:
        """The time of the last event, in seconds."""
        return max((life.spans[-1].end for life in self.lives.values()), default=0.0)

    @property
    def summary(self) -> Summary:
        """The key figures of the run."""
        lives = list(self.lives.values())
        makespan = max((life.end for life in lives), default=0.0) - min((life.arrival for life in lives), default=0.0)
        samples = sum(life.iterations * life.batch for life in lives)
        busy = [life.busy for life in lives if life.busy is not None]
        return Summary(
            jobs=len(lives),
            failed=sum(life.spans[-1].state is State.FAILED for life in lives),
            completion=sum(life.seconds for life in lives) / max(1, len(lives)),
            makespan=makespan,
            throughput=samples / makespan if makespan > 0 else 0.0,
            busy=sum(busy) / len(busy) if busy else None,
            resizes=sum(span.state is State.RESIZING for life in lives for span in life.spans),
        )


def history(folder: Path) -> History:
    """Read the run whose files are in a folder. Raises OSError if they cannot be read, LogError for a damaged log."""
    lives: dict[str, Life] = {}
    events = read(Settings.log(folder))
    last = max((event.time for event in events), default=0.0)
    moments = list(_moments(folder / PACE))
    last = max([last, *(moment.time for _, moment in moments)])
    for event in events:
        _note(lives, event, last)
    for name, moment in moments:
        if name in lives:
            lives[name].pace.append(moment)
            lives[name].iterations = max(lives[name].iterations, moment.iteration)
    return History(_name(folder), lives)


def _name(folder: Path) -> str:
    try:
        settings = Settings.load(folder)
    except FileNotFoundError:
        return folder.name
    return f"{settings.scheduler}, mode {settings.mode} ({folder.name})"


def _note(lives: dict[str, Life], event: Event, last: float) -> None:
    life = lives.setdefault(event.application, Life(event.application))
    details = event.details
    if "spec" in details:
        life.batch = details["spec"]["batch"]
    if event.after is not event.before:
        if life.spans:
            before = life.spans[-1]
            life.spans[-1] = Span(before.state, before.start, event.time, before.reason)
        life.spans.append(Span(event.after, event.time, event.time if event.after in ENDED else last, event.reason))
    if "placement" in details:
        life.devices = sum(map(len, details["placement"].values()))
    if "workers" in details:
        life.workers.append((event.time, details["workers"] * life.devices))
    elif event.after not in HOLDING and life.workers and life.workers[-1][1]:
        life.workers.append((event.time, 0))
    if "progress" in details:
        life.iterations = max(life.iterations, details["progress"])


def _moments(path: Path) -> Iterator[tuple[str, Moment]]:
    if not path.exists():
        return
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["loss"] is None:
                continue  # a row that a full disk or a crash has torn
            yield (
                row["application"],
                Moment(
                    float(row["time"]), float(row["samples_per_second"]), float(row["waiting"]), int(row["iteration"])
                ),
            )
