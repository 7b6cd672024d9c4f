"""A training job as its submitter describes it, and the native job file, in TOML or YAML, which has fields that a
workload's columns lack."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from dragon.infrastructure.errors import DragonError
from torchloader.scheduling.application import Spec

# Names of jobs become parts of file names.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
LATEST = 10**9  # seconds at which a job arrives; thirty years


# GoogLeNet has one form, which workloads call depth 1.
DEPTHS: dict[str, tuple[int, ...]] = {"resnet": (10, 18, 34, 50, 101, 152), "vgg": (11, 13, 16, 19), "googlenet": (1,)}


def known(arch: str, depth: int) -> bool:
    return depth in DEPTHS.get(arch, ())


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices that a job trains on: specific ones by node, or any number."""

    by_node: tuple[tuple[int, ...], ...] = ()  # device indices, one tuple for each node
    nodes: tuple[str, ...] = ()  # the names of these nodes, in the same order; empty if any nodes will do
    anywhere: int = 0  # the number of devices if any will do; then `by_node` is empty

    @property
    def count(self) -> int:
        return self.anywhere or sum(len(indices) for indices in self.by_node)


@dataclass(frozen=True, slots=True)
class Job:
    """A training job."""

    name: str  # the name, unique in its workload
    batch: int  # samples per iteration, over all devices of all nodes
    workers: int  # loading workers, over all devices of all nodes
    output_folder: str  # the folder for traces and checkpoints
    devices: Devices  # what it trains on
    arch: str = ""  # the network to train, and its depth, or a script and its arguments
    depth: int = 0
    script: str = ""
    arguments: tuple[str, ...] = ()
    dataset: str = ""  # in the syntax of `torchloader.training.train`; empty for synthetic images
    master: str = ""  # the address at which its ranks meet; chosen by the application master if not given
    port: int = 0
    arrival: float = 0.0  # seconds after the workload's start at which it is submitted
    start_iter: int = 0  # at which the first epoch begins
    start_epoch: int = 1
    end_iter: int = 0  # before which every epoch ends; 0 is the end of the data
    end_epoch: int = 1  # the last one
    weight: float = 1.0  # the relative importance of its progress
    minimum: int = 1  # loading workers per device that it accepts
    maximum: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)  # environment variables of its processes
    # How fast it trains on each kind of GPUs, relative to each other; it trains only on those, or on all alike if none
    # is named.
    speeds: Mapping[str, float] = field(default_factory=dict)

    @property
    def requested(self) -> int:
        """Loading workers per device that it requests."""
        return self.workers // self.devices.count

    @property
    def iterations(self) -> int | None:
        """The iterations from its start to its end; None if the data determines them."""
        if not self.end_iter:
            return None
        return (self.end_epoch - self.start_epoch + 1) * self.end_iter - self.start_iter

    def spec(self, devices: dict[str, tuple[int, ...]] | int, iterations: int) -> Spec:
        """Return the job as the scheduler sees it, on these devices, or on this number."""
        arch = f"{self.arch}-{self.depth}" if self.arch else self.script
        request = self.workers, self.weight, self.minimum, self.maximum, self.arrival
        return Spec(self.name, arch, devices, self.batch, iterations, *request, speeds=dict(self.speeds))


EXPECTED = "images, latency:SECONDS or jpeg:FOLDER"
_SLOWEST_S = 10**6  # seconds for a sample


def is_dataset(text: str) -> bool:
    """Return whether `torchloader.training.train` accepts the text as a dataset."""
    kind, _, argument = text.partition(":")
    if kind == "jpeg":
        return bool(argument)
    if kind != "latency":
        return text == "images"
    try:
        return 0 <= float(argument) <= _SLOWEST_S
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Mistake:
    """A place in a file, what was found there, and what was expected."""

    file: str
    row: int | None  # from 1; None for the whole file or an entry without a known line
    column: str  # its name, or the path of the field
    found: str
    expected: str
    whole: bool = False  # whether it concerns the whole file, not one job

    @property
    def message(self) -> str:
        """The mistake as a line for a user whose other jobs run."""
        return str(self) if self.whole else f"{self}; this job is left out"

    def __str__(self) -> str:
        row = "" if self.row is None else f", row {self.row}"
        column = f", {'column ' if row else ''}{self.column}" if self.column else ""
        return f"{self.file}{row}{column}: found {self.found}, expected {self.expected}"


class InputError(DragonError, ValueError):
    """Raised for a file that cannot be used. `mistakes` are all that were found."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("\n".join(str(mistake) for mistake in mistakes))
        self.mistakes = tuple(mistakes)


@dataclass(frozen=True, slots=True)
class Workload:
    """The valid jobs of a file, in its order, and the mistakes in the others."""

    jobs: tuple[Job, ...]
    errors: tuple[Mistake, ...] = ()


class Reading:
    """The description of a job while it is read: the values of its fields, and the mistakes in them."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.mistakes: list[Mistake] = []

    def wrong(self, name: str, expected: str) -> None:
        raise NotImplementedError

    def has(self, *names: str) -> bool:
        """Return whether the values of these fields are right by themselves."""
        return all(name in self.values for name in names)

    def check_shares(self, devices: int) -> None:
        """Check the totals of which each device gets its part."""
        if self.has("batch") and self.values["batch"] % devices:
            self.wrong("batch", f"a multiple of its {devices} devices")
        if self.has("workers") and self.values["workers"] is not None and self.values["workers"] < devices:
            self.wrong("workers", f"at least one for each of its {devices} devices")


_HEAVIEST = 10**9  # infinite is nothing that weights can be compared with
Positive = Annotated[int, Meta(ge=1)]
Index = Annotated[int, Meta(ge=0)]
Indices = Annotated[list[Index], Meta(min_length=1)]
Kind = Annotated[str, Meta(min_length=1)]


class JobEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One job of a job file; the fields and defaults are those of Job. `devices` is a number, a list with the indices
    of each node, or such lists by node. `epochs` and `iterations` (of each epoch) are the length of the training."""

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


class _Entry(Reading):
    """An entry while it is read."""

    def __init__(self, file: str, place: str, document: dict[str, Any]) -> None:
        super().__init__()
        self.file, self.place, self.document = file, place, document
        self.devices = Devices()

    def wrong(self, name: str, expected: str) -> None:
        self.add(name, _short(self.document.get(name)), expected)

    def add(self, path: str, found: str, expected: str) -> None:
        self.mistakes.append(Mistake(self.file, None, f"{self.place}.{path}", found, expected))

    def read(self, names: Set[str]) -> None:
        """Read and check all fields. `names` are those of other jobs."""
        for name in self.document:
            if name not in _FIELDS:
                self.add(str(name), "an unknown field", f"one of {', '.join(_FIELDS)}")
        for name, known_field in _FIELDS.items():
            if name in self.document:
                self._read(name, known_field.type)
            elif known_field.required:
                self.add(name, "nothing", "a value, as every job has one")
            else:
                made = known_field.default_factory
                self.values[name] = known_field.default if made is msgspec.NODEFAULT else made()
        if self.values.get("name") in names:
            self.wrong("name", "a name that no other job has")
        self._check_program()
        self._check_devices()
        if self.has("minimum", "maximum"):
            least, most = self.values["minimum"], self.values["maximum"]
            if most is not None and most < least:
                self.wrong("maximum", f"at least the minimum, {least}")

    def _read(self, name: str, kind: type) -> None:
        try:
            self.values[name] = msgspec.convert(self.document[name], kind)
        except msgspec.ValidationError as error:
            expected, _, path = str(error).partition(" - at `$")
            path = f"{name}{path.removesuffix('`')}"
            # The message states the value that was found separately.
            expected = re.sub(r", got `.*`$", "", expected.removeprefix("Expected "))
            self.add(path, _short(_at(self.document, path)), expected)

    def _check_program(self) -> None:
        if not self.has("script", "arch"):
            return
        script, arch = self.values["script"], self.values["arch"]
        if bool(script) == bool(arch):
            self.wrong("script", "either script or arch and depth")
        elif arch and self.has("depth") and not known(arch, self.values["depth"]):
            choice = "; ".join(f"{each} {', '.join(map(str, depths))}" for each, depths in DEPTHS.items())
            self.add("arch", repr(f"{arch} {self.values['depth']}"), f"one of {choice}")
        if arch and self.values.get("dataset") and not is_dataset(self.values["dataset"]):
            self.wrong("dataset", EXPECTED)

    def _check_devices(self) -> None:
        if self.has("devices"):
            try:
                self.devices = _devices(self.values["devices"])
            except ValueError as expected:
                self.wrong("devices", str(expected))
            else:
                self.check_shares(self.devices.count)

    def job(self, folder: Path) -> Job:
        entry = JobEntry(**self.values)
        same = "name batch arch depth dataset master port arrival weight minimum maximum"
        return Job(
            **{name: self.values[name] for name in same.split()},
            workers=entry.workers or self.devices.count,
            output_folder=entry.output_folder or entry.name,
            devices=self.devices,
            script=str(folder / entry.script) if entry.script else "",
            arguments=tuple(map(str, entry.arguments)),
            end_iter=entry.iterations,
            end_epoch=entry.epochs,
            environment={name: str(value) for name, value in entry.environment.items()},
            speeds={kind.lower(): speed for kind, speed in entry.speeds.items()},
        )


def read_jobs(path: str | Path) -> Workload:
    """Read the jobs of a TOML or YAML file: a list under `jobs`."""
    import yaml  # which programs that read no workload need not

    path = Path(path)
    kind = "TOML" if path.suffix.lower() == ".toml" else "YAML"
    try:
        text = path.read_text(encoding="utf-8-sig")
        document = tomllib.loads(text) if kind == "TOML" else yaml.safe_load(text)
    except (tomllib.TOMLDecodeError, yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        return Workload((), (Mistake(str(path), None, "", f"invalid {kind}: {reason}", f"a {kind} file", whole=True),))
    entries = document.get("jobs") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(entries, list):
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
        reading = _Entry(str(path), place, entry)
        reading.read(names)
        mistakes += reading.mistakes
        if reading.has("name"):
            names.add(reading.values["name"])
        if not reading.mistakes:
            jobs.append(reading.job(path.parent))
    return Workload(tuple(jobs), tuple(mistakes))


def _devices(value: int | list[Any] | dict[str, Any]) -> Devices:
    if isinstance(value, int):
        return Devices(anywhere=value)
    names = tuple(value) if isinstance(value, dict) else ()
    try:
        groups = msgspec.convert(list(value.values()) if isinstance(value, dict) else value, list[Indices])
    except msgspec.ValidationError:
        groups = []
    if not groups or any(len(set(group)) < len(group) for group in groups):
        raise ValueError("a number, or for each node a list of its device indices, every index once")
    return Devices(tuple(tuple(group) for group in groups), names)


def _at(document: object, field: str) -> object:
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
