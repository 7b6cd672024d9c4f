"""What a simulation came to, and files of it."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from dragon.files import write_bytes
from torchloader.scheduling.log import write
from torchloader.scheduling.records import Event

__all__ = ["JobResult", "Moment", "Result"]


@dataclass(frozen=True, slots=True)
class JobResult:
    """What became of a job; times in seconds of the simulation.

    Args:
        name, arch, devices: of the job.
        arrival, started, finished: when.
        shortest: seconds that it would have taken if it never waited for devices or data.
        samples: that it trained on.
        resizes: how often its workers were changed.
        stopped: seconds that it stood still for that.
    """

    name: str
    arch: str
    devices: int
    arrival: float
    started: float
    finished: float
    shortest: float
    samples: int
    resizes: int
    stopped: float

    @property
    def completion(self) -> float:
        """Seconds from its arrival to its end."""
        return self.finished - self.arrival


@dataclass(frozen=True, slots=True)
class Moment:
    """From when a job has so many workers per device, and trains so many samples per second over all its devices."""

    time: float
    application: str
    workers: int
    throughput: float


@dataclass(frozen=True, slots=True)
class Result:
    """A simulation's results.

    Args:
        policy: that shared the cores.
        jobs: in the order of arrival.
        moments: when anything changed.
        events: as a live run logs them.
    """

    policy: str
    jobs: Sequence[JobResult]
    moments: Sequence[Moment]
    events: Sequence[Event]

    @property
    def mean_completion(self) -> float:
        """Mean seconds from a job's arrival to its end."""
        return sum(job.completion for job in self.jobs) / len(self.jobs)

    @property
    def makespan(self) -> float:
        """Seconds from the first arrival to the last end."""
        return max(job.finished for job in self.jobs) - min(job.arrival for job in self.jobs)

    @property
    def throughput(self) -> float:
        """Devices that would do in the same time what was done, if they never waited: throughput, each job's measured
        by what it can do."""
        return sum(job.shortest * job.devices for job in self.jobs) / self.makespan

    @property
    def busy(self) -> float:
        """The part of the time for which devices were held in which they computed."""
        held = sum((job.finished - job.started) * job.devices for job in self.jobs)
        return sum(job.shortest * job.devices for job in self.jobs) / held

    def summary(self) -> dict[str, float | int | str]:
        """The figures by which policies are compared."""
        return {
            "policy": self.policy,
            "jobs": len(self.jobs),
            "mean_completion_seconds": self.mean_completion,
            "makespan_seconds": self.makespan,
            "throughput_devices": self.throughput,
            "busy_fraction": self.busy,
            "resizes": sum(job.resizes for job in self.jobs),
            "stopped_seconds": sum(job.stopped for job in self.jobs),
        }

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write `summary.json`, `jobs.csv`, `workers.csv` and `events.jsonl` into a folder, made if need be."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        write_bytes(path / "summary.json", f"{json.dumps(self.summary(), indent=1)}\n".encode())
        _table(path / "jobs.csv", [field.name for field in fields(JobResult)], [asdict(job) for job in self.jobs])
        _table(
            path / "workers.csv", [field.name for field in fields(Moment)], [asdict(moment) for moment in self.moments]
        )
        write(path / "events.jsonl", self.events)


def _table(path: Path, columns: Sequence[str], rows: Sequence[dict[str, object]]) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(rows)
    write_bytes(path, text.getvalue().encode())
