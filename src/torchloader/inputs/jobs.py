"""Reads the native job file, in TOML or YAML, which has fields that a workload's columns lack."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from msgspec import Meta

from torchloader.inputs.job import EXPECTED, LATEST, NAME, Devices, Job, Mistake, Workload, is_dataset
from torchloader.prediction.features import DEPTHS, known

_HEAVIEST = 10**9  # infinite is nothing that weights can be compared with
Positive = Annotated[int, Meta(ge=1)]
Index = Annotated[int, Meta(ge=0)]
Indices = Annotated[list[Index], Meta(min_length=1)]
Kind = Annotated[str, Meta(min_length=1)]


class JobEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One job of a job file. The fields and defaults are those of Job. `devices` is a number, a list with the device
    indices of each node, or such lists by node name. A `script` is relative to the folder of the job file. `epochs` and
    `iterations` (of each epoch) are the length of the training."""

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
    arrival: Annotated[float, Meta(ge=0, le=LATEST)] = 0.0
    epochs: Positive = 1
    iterations: Annotated[int, Meta(ge=0)] = 0
    weight: Annotated[float, Meta(gt=0, le=_HEAVIEST)] = 1.0
    minimum: Positive = 1
    maximum: Positive | None = None
    environment: dict[str, str | int | float] = {}
    speeds: dict[Kind, Annotated[float, Meta(gt=0, le=_HEAVIEST)]] = {}


_FIELDS = {field.name: field for field in msgspec.structs.fields(JobEntry)}


@dataclass
class _Reading:
    """An entry while it is read: the values of its fields, and all mistakes in them."""

    file: str
    place: str
    document: dict[str, Any]
    values: dict[str, Any] = field(default_factory=dict)
    devices: Devices = field(default_factory=Devices)
    mistakes: list[Mistake] = field(default_factory=list)

    def wrong(self, path: str, found: str, expected: str) -> None:
        self.mistakes.append(Mistake(self.file, None, f"{self.place}.{path}", found, expected))

    def contradicts(self, name: str, expected: str) -> None:
        self.wrong(name, _short(self.document.get(name)), expected)

    def has(self, *names: str) -> bool:
        return all(name in self.values for name in names)

    def read(self, names: Set[str]) -> None:
        """Read and check all fields. `names` are those of other jobs."""
        for name in self.document:
            if name not in _FIELDS:
                self.wrong(str(name), "an unknown field", f"one of {', '.join(_FIELDS)}")
        for name, known_field in _FIELDS.items():
            if name in self.document:
                self._read(name, known_field.type)
            elif known_field.required:
                self.wrong(name, "nothing", "a value, as every job has one")
            else:
                made = known_field.default_factory
                self.values[name] = known_field.default if made is msgspec.NODEFAULT else made()
        if self.values.get("name") in names:
            self.contradicts("name", "a name that no other job has")
        self._check_program()
        self._check_devices()
        if self.has("minimum", "maximum"):
            least, most = self.values["minimum"], self.values["maximum"]
            if most is not None and most < least:
                self.contradicts("maximum", f"at least the minimum, {least}")

    def _read(self, name: str, kind: Any) -> None:
        try:
            self.values[name] = msgspec.convert(self.document[name], kind)
        except msgspec.ValidationError as error:
            expected, _, path = str(error).partition(" - at `$")
            path = f"{name}{path.removesuffix('`')}"
            # The message states the value that was found separately.
            expected = re.sub(r", got `.*`$", "", expected.removeprefix("Expected "))
            self.wrong(path, _short(_at(self.document, path)), expected)

    def _check_program(self) -> None:
        if not self.has("script", "arch"):
            return
        script, arch = self.values["script"], self.values["arch"]
        if bool(script) == bool(arch):
            self.contradicts("script", "either script or arch and depth")
        elif arch and self.has("depth") and not known(arch, self.values["depth"]):
            choice = "; ".join(f"{each} {', '.join(map(str, depths))}" for each, depths in DEPTHS.items())
            self.wrong("arch", repr(f"{arch} {self.values['depth']}"), f"one of {choice}")
        if arch and self.values.get("dataset") and not is_dataset(self.values["dataset"]):
            self.contradicts("dataset", EXPECTED)

    def _check_devices(self) -> None:
        if not self.has("devices"):
            return
        try:
            self.devices = _devices(self.values["devices"])
        except ValueError as expected:
            self.contradicts("devices", str(expected))
            return
        count = self.devices.count
        if self.has("batch") and self.values["batch"] % count:
            self.contradicts("batch", f"a multiple of its {count} devices")
        if self.values.get("workers") is not None and self.values["workers"] < count:
            self.contradicts("workers", f"at least one for each of its {count} devices")

    def job(self, folder: Path) -> Job:
        entry = JobEntry(**self.values)
        return Job(
            name=entry.name,
            batch=entry.batch,
            workers=entry.workers or self.devices.count,
            output_folder=entry.output_folder or entry.name,
            devices=self.devices,
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
            speeds={kind.lower(): speed for kind, speed in entry.speeds.items()},
        )


def read_jobs(path: str | Path) -> Workload:
    """Read the jobs of a TOML or YAML file: a list under `jobs`."""
    path = Path(path)
    try:
        document = _parse(path)
    except (tomllib.TOMLDecodeError, yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        told = " ".join(str(error).split())
        kind = "TOML" if path.suffix.lower() == ".toml" else "YAML"
        return Workload((), (Mistake(str(path), None, "", f"invalid {kind}: {told}", f"a {kind} file", whole=True),))
    entries = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        return Workload((), (Mistake(str(path), None, "jobs", _short(entries), "a list of jobs", whole=True),))
    jobs: list[Job] = []
    mistakes = [
        Mistake(str(path), None, str(name), "an unknown field", "jobs alone", whole=True)
        for name in document
        if name != "jobs"
    ]
    names: set[str] = set()
    for number, entry in enumerate(entries):
        place = f"jobs[{number}]"
        if not isinstance(entry, dict):
            mistakes.append(Mistake(str(path), None, place, _short(entry), "the fields of a job by their names"))
            continue
        reading = _Reading(str(path), place, entry)
        reading.read(names)
        mistakes += reading.mistakes
        if reading.has("name"):
            names.add(reading.values["name"])
        if not reading.mistakes:
            jobs.append(reading.job(path.parent))
    return Workload(tuple(jobs), tuple(mistakes))


def _parse(path: Path) -> Any:
    text = path.read_text(encoding="utf-8-sig")
    return tomllib.loads(text) if path.suffix.lower() == ".toml" else yaml.safe_load(text)


def _devices(told: Any) -> Devices:
    if isinstance(told, int):
        return Devices(anywhere=told)
    names = tuple(told) if isinstance(told, dict) else ()
    try:
        groups = msgspec.convert(list(told.values()) if names else told, list[Indices])
    except msgspec.ValidationError:
        groups = []
    if not groups or any(len(set(group)) < len(group) for group in groups):
        raise ValueError("a number, or for each node a list of its device indices, every index once")
    return Devices(tuple(tuple(group) for group in groups), names)


def _at(document: Any, field: str) -> object:
    """Return the value at a path such as .devices[0]; the last value found if the path ends early."""
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
