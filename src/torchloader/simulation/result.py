"""The results of a simulation, and files of them."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

from dragon.files import write_bytes
from torchloader.scheduling.log import Event, write


@dataclass(slots=True)
class JobResult:
    """The result of a job; times are seconds of the simulation."""

    name: str
    arch: str
    devices: int
    arrival: float
    started: float
    finished: float
    shortest: float  # that it would have taken on the fastest kind of devices there if it never waited
    samples: int  # samples that it trained on
    resizes: int  # how often its workers were changed
    stopped: float  # seconds that it stood still for that
    paused: float = 0.0  # seconds, after its start, for which it was paused and held no devices
    computed: float = 0.0  # seconds for which its devices computed
    held: float = 0.0  # seconds for which devices were held, over all
    worked: float = 0.0  # and for which they computed

    @property
    def completion(self) -> float:
        return self.finished - self.arrival


@dataclass(frozen=True, slots=True)
class Moment:
    """A change of a job at `time`: its workers per device, and its samples per second over all devices."""

    time: float
    application: str
    workers: int
    throughput: float


@dataclass(frozen=True, slots=True)
class Result:
    """The results of a simulation."""

    policy: str  # the name of the policy, and of the order of jobs if it is not that of arrival
    jobs: Sequence[JobResult]  # in the order of arrival
    moments: Sequence[Moment]  # all changes of workers and throughput
    events: Sequence[Event]  # as a live run logs them

    @property
    def mean_completion(self) -> float:
        """The mean seconds from a job's arrival to its end."""
        return sum(job.completion for job in self.jobs) / len(self.jobs)

    @property
    def makespan(self) -> float:
        """The seconds from the first arrival to the last end."""
        return max(job.finished for job in self.jobs) - min(job.arrival for job in self.jobs)

    @property
    def throughput(self) -> float:
        """The average number of devices that would suffice for the work if they never waited."""
        return sum(job.shortest * job.devices for job in self.jobs) / self.makespan

    @property
    def busy(self) -> float:
        """The fraction of the time for which devices were held in which they computed."""
        return math.fsum(job.worked for job in self.jobs) / math.fsum(job.held for job in self.jobs)

    @property
    def lost_device_hours(self) -> float:
        """The hours for which devices were held and did not compute."""
        return math.fsum(job.held - job.worked for job in self.jobs) / 3600

    def unfairness(self, devices: int) -> list[float]:
        """Return the finish-time fairness of each job (Themis, NSDI '20): its completion divided by the time that it
        would take in an equal share of the cluster, on its fastest kind of devices. Above 1 it was served worse than by
        equal shares."""
        present = _Present(self.jobs)
        return [
            job.completion / (job.shortest * max(1.0, present.mean(job.arrival, job.finished) * job.devices / devices))
            for job in self.jobs
        ]

    def summary(self) -> dict[str, float | int | str]:
        """Return the figures by which policies are compared."""
        return {
            "policy": self.policy,
            "jobs": len(self.jobs),
            "mean_completion_seconds": self.mean_completion,
            "makespan_seconds": self.makespan,
            "throughput_devices": self.throughput,
            "busy_fraction": self.busy,
            "lost_device_hours": self.lost_device_hours,
            "resizes": sum(job.resizes for job in self.jobs),
            "stopped_seconds": sum(job.stopped for job in self.jobs),
        }

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write `summary.json`, `jobs.csv`, `workers.csv` and `events.jsonl` into a folder."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        write_bytes(path / "summary.json", f"{json.dumps(self.summary(), indent=1)}\n".encode())
        _table(path / "jobs.csv", JobResult, self.jobs)
        _table(path / "workers.csv", Moment, self.moments)
        write(path / "events.jsonl", self.events)


class _Present:
    """The number of jobs over time that have arrived and not ended."""

    def __init__(self, jobs: Sequence[JobResult]) -> None:
        changes = sorted([(job.arrival, 1) for job in jobs] + [(job.finished, -1) for job in jobs])
        self._times, self._counts, self._sums = [0.0], [0], [0.0]  # sums: of the count over the time until then
        for time, change in changes:
            self._sums.append(self._sums[-1] + self._counts[-1] * (time - self._times[-1]))
            self._times.append(time)
            self._counts.append(self._counts[-1] + change)

    def mean(self, start: float, end: float) -> float:
        """Return the mean number between two times; `start` must be before `end`."""
        return (self._sum(end) - self._sum(start)) / (end - start)

    def _sum(self, time: float) -> float:
        place = bisect_right(self._times, time) - 1
        return self._sums[place] + self._counts[place] * (time - self._times[place])


def _table(path: Path, kind: type[JobResult | Moment], rows: Sequence[JobResult | Moment]) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(field.name for field in fields(kind))
    writer.writerows(map(astuple, rows))
    write_bytes(path, text.getvalue().encode())
