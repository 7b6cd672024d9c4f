"""A training job as its submitter describes it, independent of the file format."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torchloader.scheduling.application import Spec

# Names of jobs become parts of file names.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
LATEST = 10**9  # seconds at which a job arrives; thirty years


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices that a job trains on: specific ones by node, or any number."""

    by_node: tuple[tuple[int, ...], ...] = ()  # device indices, one tuple for each node
    nodes: tuple[str, ...] = ()  # the names of these nodes, in the same order; empty if any nodes will do
    anywhere: int = 0  # the number of devices if any will do; then `by_node` is empty

    @property
    def count(self) -> int:
        """The number of devices on all nodes."""
        return self.anywhere or sum(len(indices) for indices in self.by_node)


@dataclass(frozen=True, slots=True)
class Job:
    """A training job.

    Args:
        arch, depth: the network to train, or
        script, arguments: the program that trains.
        batch, workers: samples per iteration and loading workers, over all devices of all nodes.
        master, port: the address at which its ranks meet; chosen by the application master if not given.
        start_iter, start_epoch, end_iter, end_epoch: the first epoch begins at iteration `start_iter`; every epoch
            ends before iteration `end_iter`, and `end_epoch` is the last. An `end_iter` of 0 is the end of the data.
        minimum, maximum: the range of loading workers per device that it accepts; no upper bound by default.
        speeds: how fast it trains on each kind of GPUs, relative to each other; it trains only on those, or on all
            alike if none is named.
    """

    name: str  # the name, unique in its workload
    batch: int
    workers: int
    output_folder: str  # the folder for traces and checkpoints
    devices: Devices  # what it trains on
    arch: str = ""
    depth: int = 0
    script: str = ""
    arguments: tuple[str, ...] = ()
    dataset: str = ""  # what it trains on, in the syntax of `torchloader.training.train`; empty for synthetic images
    master: str = ""
    port: int = 0
    arrival: float = 0.0  # seconds after the workload's start at which it is submitted
    start_iter: int = 0
    start_epoch: int = 1
    end_iter: int = 0
    end_epoch: int = 1
    weight: float = 1.0  # the relative importance of its progress
    minimum: int = 1
    maximum: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)  # environment variables of its processes
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
    """A place in a file, what was found there, and what was expected. `row` counts from 1 and is None for the whole
    file or an entry without a known line; `column` is the column's name, or the path of the field. `whole` means that
    it concerns the whole file, not one job."""

    file: str
    row: int | None
    column: str
    found: str
    expected: str
    whole: bool = False

    @property
    def told(self) -> str:
        """The mistake as a line for a user whose other jobs run."""
        return str(self) if self.whole else f"{self}; this job is left out"

    def __str__(self) -> str:
        place = [self.file]
        if self.row is not None:
            place.append(f"row {self.row}")
        if self.column:
            place.append(f"{'column ' if self.row is not None else ''}{self.column}")
        return f"{', '.join(place)}: found {self.found}, expected {self.expected}"


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
