"""Reads jobs from public traces of clusters, with what their papers say of the applications.

A trace has the arrival times, devices and durations of jobs; none has what they loaded. So each job is given a kind at
random, from its name and a seed, and the time that it took in the trace is taken as the time without waiting for data.
Times are counted from the first arrival. Jobs that never ran, or had no device, are left out.
"""

from __future__ import annotations

import csv
import json
import os
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torchloader.simulation.workload import MIX, Job, Kind, job_of
from torchloader_papers.gavel_models import KINDS, SERVICES, STEPS, speeds_of
from torchloader_papers.goodput import Linear, Profile, Stage, sized

__all__ = ["FORMATS", "PROFILES", "TraceError", "read_trace", "stretched"]


_LARGEST_JOB = 1000  # devices: more than any cluster here has


def _profile(
    seconds: tuple[float, ...], batches: tuple[int, int, int], noise: str, most: int = _LARGEST_JOB
) -> Profile:
    """Return a profile.

    Args:
        seconds: the two numbers of the gradient, of one node and of several, and the overlap.
        batches: the initial one, the largest one, and the largest of a device.
        noise: the end and the noise scale of each stage.
        most: the largest number of devices.
    """
    gradient, each, local, local_each, nodes, nodes_each, overlap = seconds
    initial, largest, fitting = batches
    stages = (part.split(":") for part in noise.split())
    return Profile(
        Linear(gradient, each),
        Linear(local, local_each),
        Linear(nodes, nodes_each),
        overlap,
        initial,
        initial,
        largest,
        fitting,
        most,
        tuple(Stage(float(until), float(scale)) for until, scale in stages),
    )


PROFILES: Mapping[str, Profile] = {
    "cifar10": _profile(
        (0.0153, 0.000742, 0.036, 0.00658, 0.122, 0.00374, 2.94),
        (128, 4096, 1024),
        "391:96.1 783:381 1173:558 1564:807 1954:1110 2347:1330 3128:1940 3908:2180 5862:3270 7818:4330 9771:4920 "
        "11724:6540 15626:8770 19536:14000 23440:25000 25394:29100 27346:40800 29303:63900 31254:61300 35159:101000 "
        "39068:69600",
    ),
    "deepspeech2": _profile(
        (0.346, 0.0225, 0.0815, 0.00304, 0.272, 0.0101, 1.12),
        (20, 640, 80),
        "358:13.9 716:41.2 1074:104 1428:183 1788:293 2498:491 3571:937 5353:1920 7137:5680 8920:19300 12845:27900 "
        "28539:49500",
    ),
    "bert": _profile((0.222, 0.0591, 0.162, 0.0757, 1.46, 0.0191, 2.29), (12, 384, 12), "7392:2210 14778:6710"),
    "yolov3": _profile(
        (0.153, 0.0252, 0.0647, 0.0939, 0.711, 0.0293, 1.2),
        (8, 128, 16),
        "2071:0.477 4140:162 6210:189 8278:209 12415:270 20691:379 31034:345 41380:534 51726:444 62067:690 72413:799 "
        "82758:1360 93102:3000 103447:6170",
    ),
    "imagenet": _profile(
        (0.0872, 0.00415, 1e-06, 1e-06, 0.0483, 0.0263, 1.16),
        (200, 6400, 200),
        "6407:687 12814:2820 25625:5120 64061:7090 128120:8240 185770:8720 192179:8800 198581:31400 217799:32500 "
        "256236:28400 320295:25800 384350:26400 390758:55500 435600:55300 499656:53900 576526:54300",
    ),
    "ncf": _profile(
        (0.001, 8.8e-07, 0.0, 0.0, 0.0, 0.0, 1.0),
        (256, 32768, 32768),
        "19455:120000 38892:1160000 97143:5510000 194230:34700000",
        most=1,
    ),
}
"""The profiles by the name that `workload-N.csv` gives the application."""


class TraceError(ValueError):
    """Raised for a trace that does not match its format; names the file, row and column."""


_LATEST = 1e11  # seconds; far beyond any date
_Columns = Mapping[str, Callable[[str], Any]]


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    arrival: float
    devices: int
    seconds: float
    workers: int | None = None
    kind: Kind | None = None
    speeds: Mapping[str, float] = field(default_factory=dict)
    batch: int = 0  # over all devices; 0 if the trace does not tell


def _time(text: str) -> float:
    return datetime.strptime(text, "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()


def _seconds(text: str) -> float:
    if not abs(number := float(text)) <= _LATEST:
        raise ValueError(text)
    return number


def _count(text: str) -> int:
    return int(float(text)) if float(text).is_integer() else int(text)


def _rows(path: Path, columns: _Columns) -> Iterator[dict[str, Any]]:
    """Yield the rows of a CSV file with the named columns converted."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield from _converted(path, csv.DictReader(file), columns)
    except (csv.Error, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: {error}; is this the right format?") from None


def _converted(path: Path, reader: csv.DictReader[str], columns: _Columns) -> Iterator[dict[str, Any]]:
    missing = [column for column in columns if column not in (reader.fieldnames or ())]
    if missing:
        raise TraceError(f"{path}, row 1: there is no column {', '.join(missing)}; is this the right format?")
    for row in reader:
        found = {}
        for column, convert in columns.items():
            try:
                found[column] = convert(row[column])
            except (ValueError, TypeError):
                where = f"{path}, row {reader.line_num}, column {column}"
                raise TraceError(f"{where}: {row[column]!r} is not a valid value of this column") from None
        yield found


def helios(path: Path) -> Iterator[_Entry]:
    """Read `cluster_log.csv` of the Helios traces (SenseTime, SC '21).

    Columns: job_id, gpu_num, cpu_num (requested cores), submit_time ("2020-06-09 18:41:01"), duration (seconds that it
    ran). user, vc, node_num, state, start_time, end_time and queue are not needed.
    """
    columns: _Columns = {
        "job_id": str,
        "gpu_num": _count,
        "cpu_num": _count,
        "submit_time": _time,
        "duration": _seconds,
    }
    for row in _rows(path, columns):
        yield _Entry(row["job_id"], row["submit_time"], row["gpu_num"], row["duration"], max(1, row["cpu_num"]))


_HOURS = 3600.0
# The time of jobs of Pollux's workloads on one device, by the classes of its authors (OSDI '21): small below an hour,
# medium up to ten hours, large up to a hundred, and more.
_POLLUX = {
    "cifar10": (Kind("cifar10", 2400, 0.001, 128), 0.5 * _HOURS),
    "ncf": (Kind("ncf", 90_000, 0.00001, 4096), 0.2 * _HOURS),
    "deepspeech2": (Kind("deepspeech2", 60, 0.030, 20), 3 * _HOURS),
    "bert": (Kind("bert", 120, 0.001, 12), 5 * _HOURS),
    "yolov3": (Kind("yolov3", 40, 0.060, 8), 20 * _HOURS),
    "imagenet": (Kind("imagenet", 380, 0.008, 64), 200 * _HOURS),
}


def pollux(path: Path) -> Iterator[_Entry]:
    """Read `workload-N.csv` of Pollux's simulator (AdaptDL, OSDI '21).

    Columns: name, time (seconds), application (cifar10, ncf, deepspeech2, bert, yolov3 or imagenet), num_replicas
    (devices). The application determines what is trained; the typical time of its class is divided by the devices.
    batch_size, the samples over all devices, is used only with profiles.
    """

    def application(text: str) -> tuple[Kind, float]:
        if text not in _POLLUX:
            raise ValueError(text)
        return _POLLUX[text]

    columns: _Columns = {
        "name": str,
        "time": _seconds,
        "application": application,
        "num_replicas": _count,
        "batch_size": _count,
    }
    for row in _rows(path, columns):
        kind, seconds = row["application"]
        devices = row["num_replicas"]
        yield _Entry(row["name"], row["time"], devices, seconds / max(1, devices), kind=kind, batch=row["batch_size"])


def philly(path: Path) -> Iterator[_Entry]:
    """Read `cluster_job_log` of the Philly traces (Microsoft, ATC '19), a list of jobs in JSON.

    Keys: jobid, submitted_time ("2017-10-07 01:11:39"), and attempts, each with start_time, end_time and detail, a list
    of machines with their gpus. A job has the devices of its last attempt, and the total time of all attempts. Attempts
    without a beginning or an end, which the trace describes as errors of logging or as still running, are left out.

    Or read the table that AdaptDL's authors made of it (`simulator/traces/philly.csv`), if the file's name ends with
    .csv. Columns: timestamp ("2017-10-09 07:01:55"), duration (seconds) and num_gpus; jobs are numbered by row.
    """
    if path.suffix == ".csv":
        columns: _Columns = {"timestamp": _time, "duration": _seconds, "num_gpus": _count}
        for number, row in enumerate(_rows(path, columns), 1):
            yield _Entry(f"philly-{number}", row["timestamp"], row["num_gpus"], row["duration"])
        return
    try:
        jobs = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path} is not valid JSON: {error}; is this the right format?") from None
    if not isinstance(jobs, list):
        raise TraceError(f"{path}: there is no list of jobs; is this the right format?")
    for number, job in enumerate(jobs, 1):
        column = "jobid"
        try:
            name = str(job["jobid"])
            column = "submitted_time"
            if job["submitted_time"] in (None, "None"):
                continue
            arrival = _time(job["submitted_time"])
            column = "attempts"
            ran = [each for each in job["attempts"] if _known(each["start_time"]) and _known(each["end_time"])]
            seconds = sum(_time(each["end_time"]) - _time(each["start_time"]) for each in ran)
            devices = sum(len(machine["gpus"]) for machine in ran[-1]["detail"]) if ran else 0
        except (KeyError, TypeError, ValueError) as error:
            raise TraceError(f"{path}, job {number}, key {column}: {type(error).__name__}: {error}") from None
        yield _Entry(name, arrival, devices, seconds)


def _known(time: str | None) -> bool:
    return time not in (None, "None")


def pai(path: Path) -> Iterator[_Entry]:
    """Read `openb_pod_list_*.csv` of Alibaba PAI's GPU traces (cluster-trace-gpu-v2023, ATC '23).

    Columns: name, cpu_milli (thousandths of a core that were requested), num_gpu, creation_time, scheduled_time and
    deletion_time (seconds; without scheduled_time it never ran). A job takes as long as it ran. A job that shares a
    device gets a whole one here; gpu_milli, memory_mib, gpu_spec, qos and pod_phase are not needed.
    """

    def when(text: str) -> float | None:
        return _seconds(text) if text else None

    columns: _Columns = {
        "name": str,
        "cpu_milli": _count,
        "num_gpu": _count,
        "creation_time": _seconds,
        "scheduled_time": when,
        "deletion_time": _seconds,
    }
    for row in _rows(path, columns):
        if row["scheduled_time"] is not None:
            seconds = row["deletion_time"] - row["scheduled_time"]
            yield _Entry(
                row["name"], row["creation_time"], row["num_gpu"], seconds, max(1, round(row["cpu_milli"] / 1000))
            )


_GAVEL_TYPE = re.compile(r"([\w-]+)(?: \(batch size (\d+)\))?")


def gavel(path: Path) -> Iterator[_Entry]:
    """Read `*.trace` of Gavel (Stanford, OSDI '20): one job per line, in tab-separated columns without names.

    With ten columns the first is the type, such as "ResNet-18 (batch size 64)", the sixth the steps over all devices,
    the seventh the devices and the tenth the arrival in seconds. With seven, as in older traces, the steps are the
    fifth, the arrival the sixth and the devices the last. A job takes the time of its steps on P100s, assuming that
    twice as many are twice as fast; on other kinds it has the speed of `speeds_of`. The command, the weight and the
    deadline are not needed.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            for number, row in enumerate(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE), 1):
                yield _gavel_entry(f"{path}, row {number}", number, row)
        except (csv.Error, UnicodeDecodeError) as error:
            raise TraceError(f"{path}: {error}; is this the right format?") from None


def _gavel_entry(where: str, number: int, row: list[str]) -> _Entry:
    places = {10: (5, 6, 9), 7: (4, 6, 5)}.get(len(row))
    if places is None:
        raise TraceError(f"{where}: there are {len(row)} columns, not 10 or 7; is this the right format?")
    found = _GAVEL_TYPE.fullmatch(row[0].strip())
    batch = int(found[2] or 1) if found else 0
    steps_on = STEPS.get(found[1], {}).get(batch) if found else None
    if found is None or steps_on is None:
        raise TraceError(f"{where}, column 1: it is not known how fast {row[0]!r} trains")
    values = []
    for place, convert in zip(places, (_count, _count, _seconds), strict=True):
        try:
            values.append(convert(row[place]))
        except ValueError:
            told = f"{where}, column {place + 1}: {row[place]!r}"
            raise TraceError(f"{told} is not a valid value of this column") from None
    steps, devices, arrival = values
    rate = steps_on[KINDS.index("p100")]
    kind = Kind(found[1].lower(), rate * batch, SERVICES[found[1]], batch)
    seconds = steps / rate / max(1, devices)
    speeds = speeds_of(found[1], batch, "p100")
    return _Entry(f"{kind.arch}-{number}", arrival, int(devices), seconds, kind=kind, speeds=speeds)


FORMATS: Mapping[str, Callable[[Path], Iterator[_Entry]]] = {
    "philly": philly,
    "helios": helios,
    "pollux": pollux,
    "sia": pollux,  # whose authors took the format over (SOSP '23)
    "pai": pai,
    "gavel": gavel,
}
"""The readers by the name of the format."""


def read_trace(
    path: str | os.PathLike[str], form: str, seed: int = 0, limit: int | None = None, profiles: bool = False
) -> list[Job]:
    """Return the jobs of a trace, in the order of arrival.

    Args:
        path: the file.
        form: its format, one of `FORMATS`.
        seed: the seed for what the trace does not contain.
        limit: the number of jobs to read at most, the first ones; None for all.
        profiles: give each job the profile of its application, which determines how long it takes with how many
            devices, instead of the typical time of its class. Only applications of Pollux have profiles.

    Raises TraceError for a mismatch with the format, with file, row and column; OSError if it cannot be read.
    """
    if form not in FORMATS:
        raise TraceError(f"there is no format {form!r}; the formats are {', '.join(FORMATS)}")
    entries = [each for each in FORMATS[form](Path(path)) if each.devices > 0 and each.seconds > 0]
    entries.sort(key=lambda each: (each.arrival, each.name))
    jobs, names = [], set()
    for each in entries[:limit]:
        if each.name in names:
            raise TraceError(f"{path}: two jobs are named {each.name!r}; give each its own name")
        names.add(each.name)
        chance = random.Random(f"{seed} {each.name}")
        kind = each.kind or chance.choice(MIX)
        job = job_of(each.name, kind, each.devices, each.seconds, each.arrival - entries[0].arrival, chance)
        workers = job.spec.workers if each.workers is None else each.workers
        job = replace(job, spec=replace(job.spec, workers=workers, speeds=dict(each.speeds)))
        jobs.append(_profiled(path, job, each.batch) if profiles else job)
    return jobs


def _profiled(path: str | os.PathLike[str], job: Job, batch: int) -> Job:
    """Return the job with the profile of its application, and a curve up to the fastest rate of a device."""
    if job.spec.arch not in PROFILES:
        raise TraceError(f"{path}: the goodput of {job.spec.arch!r} is not known; it is of {', '.join(PROFILES)}")
    profile = PROFILES[job.spec.arch]
    largest = max(profile.largest, batch)
    profile = replace(profile, fixed=max(profile.initial, batch), largest=largest)
    ceiling = profile.fitting / profile.gradient.at(profile.fitting)
    curve = replace(job.curve, ceiling=ceiling, shared=job.curve.shared * job.curve.ceiling / ceiling)
    spec = job.spec
    more = {"arch": spec.arch, "devices": spec.devices, "workers": spec.workers, "arrival": spec.arrival}
    return sized(profile, curve, spec.name, **more)


def stretched(jobs: list[Job], devices: int, load: float) -> list[Job]:
    """Return the jobs with arrival times scaled so that work arrives at the given load.

    Args:
        jobs: in the order of arrival.
        devices: the number of devices of the cluster.
        load: work that arrives per second, relative to the capacity of all devices if they never wait for data.
    """
    span = jobs[-1].spec.arrival - jobs[0].spec.arrival if jobs else 0.0
    if span == 0.0:
        return jobs
    factor = sum(job.shortest * job.spec.size for job in jobs) / (devices * load) / span
    return [replace(job, spec=replace(job.spec, arrival=job.spec.arrival * factor)) for job in jobs]
