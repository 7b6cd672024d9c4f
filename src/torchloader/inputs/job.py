"""A training job as its submitter describes it, independent of the file format."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchloader.scheduling.application import Spec

# Names of jobs become parts of file names.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
LATEST = 10**9  # seconds at which a job arrives; thirty years


# GoogLeNet has one form, which workloads call depth 1.
DEPTHS: dict[str, tuple[int, ...]] = {"resnet": (10, 18, 34, 50, 101, 152), "vgg": (11, 13, 16, 19), "googlenet": (1,)}


def known(arch: str, depth: int) -> bool:
    """Return whether the network exists with this depth."""
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


class InputError(ValueError):
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
