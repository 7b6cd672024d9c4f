"""What a simulation came to, and files of it."""

from __future__ import annotations

import csv
import io
import json
import os
from bisect import bisect_right
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
        paused: seconds, after its start, for which it was paused and held no devices.
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
    paused: float = 0.0

    @property
    def completion(self) -> float:
        """Seconds from its arrival to its end."""
        return self.finished - self.arrival

    @property
    def holding(self) -> float:
        """Seconds for which it held its devices."""
        return self.finished - self.started - self.paused


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
        policy: the name of what shared the cores, and of the order of jobs where that was not the order of arrival.
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
        held = sum(job.holding * job.devices for job in self.jobs)
        return sum(job.shortest * job.devices for job in self.jobs) / held

    @property
    def lost_device_hours(self) -> float:
        """Hours for which devices were held and did not compute."""
        return sum((job.holding - job.shortest) * job.devices for job in self.jobs) / 3600

    def unfairness(self, devices: int) -> list[float]:
        """Return the finish-time fairness of each job (Themis, NSDI '20): its completion, divided by the time that it
        would take in an equal share of the cluster, which is one of as many as there were jobs at the time, on average.
        Above 1 a job was served worse than by equal shares.

        Args:
            devices: of the cluster.
        """
        present = _Present(self.jobs)
        return [
            job.completion / (job.shortest * max(1.0, present.mean(job.arrival, job.finished) * job.devices / devices))
            for job in self.jobs
        ]

    def summary(self) -> dict[str, float | int | str]:
        """The figures by which policies are compared."""
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
        """Write `summary.json`, `jobs.csv`, `workers.csv` and `events.jsonl` into a folder, made if need be."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        write_bytes(path / "summary.json", f"{json.dumps(self.summary(), indent=1)}\n".encode())
        _table(path / "jobs.csv", [field.name for field in fields(JobResult)], [asdict(job) for job in self.jobs])
        _table(
            path / "workers.csv", [field.name for field in fields(Moment)], [asdict(moment) for moment in self.moments]
        )
        write(path / "events.jsonl", self.events)


class _Present:
    """How many jobs there are over time: arrived, and not ended."""

    def __init__(self, jobs: Sequence[JobResult]) -> None:
        changes = sorted([(job.arrival, 1) for job in jobs] + [(job.finished, -1) for job in jobs])
        self._times, self._counts, self._sums = [0.0], [0], [0.0]  # sums: of the count over the time until then
        for time, change in changes:
            self._sums.append(self._sums[-1] + self._counts[-1] * (time - self._times[-1]))
            self._times.append(time)
            self._counts.append(self._counts[-1] + change)

    def mean(self, start: float, end: float) -> float:
        """Return the mean number between two times, the first of which is the smaller one."""
        return (self._sum(end) - self._sum(start)) / (end - start)

    def _sum(self, time: float) -> float:
        place = bisect_right(self._times, time) - 1
        return self._sums[place] + self._counts[place] * (time - self._times[place])


def _table(path: Path, columns: Sequence[str], rows: Sequence[dict[str, object]]) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(rows)
    write_bytes(path, text.getvalue().encode())
