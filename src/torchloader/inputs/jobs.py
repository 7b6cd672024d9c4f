"""The native job file, in TOML or YAML: what a workload's columns cannot say."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta

from torchloader.inputs.job import NAME, Devices, Job
from torchloader.inputs.mistakes import Mistake, Workload
from torchloader.prediction.architectures import DEPTHS, known

__all__ = ["JobEntry", "read_jobs"]

Positive = Annotated[int, Meta(ge=1)]
Index = Annotated[int, Meta(ge=0)]
Indices = Annotated[list[Index], Meta(min_length=1)]


class JobEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One job of a job file. Defaults are those of Job, which says what the fields mean.

    `devices` is a number, a list of device indices for each node, or such lists by the names of nodes. A `script` is
    found from the folder of the job file. `epochs` and `iterations` (of each epoch) say how long it trains.
    """

    name: Annotated[str, Meta(pattern=f"^{NAME.pattern}$")]
    batch: Positive
    devices: Positive | list[Any] | dict[str, Any] = 1
    workers: Positive | None = None
    output_folder: str | None = None
    arch: str = ""
    depth: int = 0
    script: str = ""
    arguments: list[str | int | float] = []
    dataset: str = ""
    master: str = ""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    arrival: Annotated[float, Meta(ge=0)] = 0.0
    epochs: Positive = 1
    iterations: Annotated[int, Meta(ge=0)] = 0
    weight: Annotated[float, Meta(gt=0)] = 1.0
    minimum: Positive = 1
    maximum: Positive | None = None
    environment: dict[str, str | int | float] = {}


class _Wrong(ValueError):
    """A field that contradicts another."""

    def __init__(self, column: str, found: object, expected: str) -> None:
        self.column, self.found, self.expected = column, found, expected


def read_jobs(path: str | Path) -> Workload:
    """The jobs of a TOML or YAML file: a list under `jobs`.

    Everything wrong in the file is in `errors`, each with the path of its field, such as jobs[2].batch, and the good
    jobs are in `jobs` nevertheless. Raises OSError where the file cannot be read.
    """
    path = Path(path)
    try:
        document = _parse(path)
    except (tomllib.TOMLDecodeError, yaml.YAMLError, UnicodeDecodeError) as error:
        told = " ".join(str(error).split())
        kind = "TOML" if path.suffix.lower() == ".toml" else "YAML"
        return Workload((), (Mistake(str(path), None, "", f"no {kind}: {told}", f"a {kind} file"),))
    entries = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        return Workload((), (Mistake(str(path), None, "jobs", _short(entries), "a list of jobs"),))
    jobs: list[Job] = []
    mistakes = [
        Mistake(str(path), None, str(name), "an unknown field", "jobs alone") for name in document if name != "jobs"
    ]
    for place, entry in enumerate(entries):
        try:
            jobs.append(_job(entry, path.parent, {job.name for job in jobs}))
        except msgspec.ValidationError as error:
            expected, _, field = str(error).partition(" - at `$")
            field = re.sub(r"`$", "", field)
            mistakes.append(Mistake(str(path), None, f"jobs[{place}]{field}", _short(_at(entry, field)), expected))
        except _Wrong as wrong:
            mistakes.append(
                Mistake(str(path), None, f"jobs[{place}].{wrong.column}", _short(wrong.found), wrong.expected)
            )
    return Workload(tuple(jobs), tuple(mistakes))


def _parse(path: Path) -> Any:
    text = path.read_text(encoding="utf-8-sig")
    return tomllib.loads(text) if path.suffix.lower() == ".toml" else yaml.safe_load(text)


def _job(document: Any, folder: Path, names: set[str]) -> Job:
    entry = msgspec.convert(document, JobEntry)
    devices = _devices(entry.devices)
    workers = entry.workers or devices.count
    if entry.name in names:
        raise _Wrong("name", entry.name, "a name that no other job has")
    if bool(entry.script) == bool(entry.arch):
        raise _Wrong("script", entry.script, "either script or arch and depth")
    if entry.arch and not known(entry.arch, entry.depth):
        choice = "; ".join(f"{arch} {', '.join(map(str, depths))}" for arch, depths in DEPTHS.items())
        raise _Wrong("arch", f"{entry.arch} {entry.depth}", f"one of {choice}")
    if entry.batch % devices.count:
        raise _Wrong("batch", entry.batch, f"a multiple of its {devices.count} devices")
    if workers < devices.count:
        raise _Wrong("workers", workers, f"at least one for each of its {devices.count} devices")
    if entry.maximum is not None and entry.maximum < entry.minimum:
        raise _Wrong("maximum", entry.maximum, f"at least the minimum, {entry.minimum}")
    return Job(
        name=entry.name,
        batch=entry.batch,
        workers=workers,
        output_folder=entry.output_folder or entry.name,
        devices=devices,
        arch=entry.arch,
        depth=entry.depth,
        script=str(folder / entry.script) if entry.script else "",
        arguments=tuple(str(argument) for argument in entry.arguments),
        dataset=entry.dataset,
        master=entry.master,
        port=entry.port,
        arrival=entry.arrival,
        end_iter=entry.iterations,
        end_epoch=entry.epochs,
        weight=entry.weight,
        minimum=entry.minimum,
        maximum=entry.maximum,
        environment={name: str(value) for name, value in entry.environment.items()},
    )


def _devices(told: Any) -> Devices:
    if isinstance(told, int):
        return Devices(anywhere=told)
    names = tuple(told) if isinstance(told, dict) else ()
    try:
        groups = msgspec.convert(list(told.values()) if names else told, list[Indices])
    except msgspec.ValidationError:
        groups = []
    if not groups or any(len(set(group)) < len(group) for group in groups):
        raise _Wrong("devices", told, "a number, or for each node a list of its device indices, every index once")
    return Devices(tuple(tuple(group) for group in groups), names)


def _at(document: Any, field: str) -> object:
    """What stands at a path such as .devices[0]; the document itself where the path leads nowhere."""
    for name in re.findall(r"[^.\[\]]+", field):
        if isinstance(document, dict) and name in document:
            document = document[name]
        elif isinstance(document, list) and name.isdigit():
            document = document[int(name)]
        else:
            break
    return document


def _short(found: object) -> str:
    text = "nothing" if found is None else repr(found)
    return text if len(text) <= 60 else f"{text[:57]}..."
