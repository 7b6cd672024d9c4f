"""Predicts how fast a job will compute that has never run, from measurements of others."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from dragon.files import whole_file, write_bytes
from torchloader.prediction.curve import Belief, Guess


@dataclass(frozen=True, slots=True)
class Counts:
    """A model's parameters, and the operations of one sample's forward pass by their kind; a multiplication and an
    addition are two. `pointwise` convolutions have a kernel of one element, `depthwise` ones a filter per channel, and
    `other` are no convolutions."""

    parameters: int
    ordinary: int = 0
    pointwise: int = 0
    depthwise: int = 0
    other: int = 0

    @property
    def operations(self) -> int:
        """The operations of all kinds together."""
        return self.ordinary + self.pointwise + self.depthwise + self.other


COLUMNS = (
    "communication",
    "parameters",
    "batch * parameters",
    "batch * ordinary",
    "batch * pointwise",
    "batch * depthwise",
    "batch * other",
)


@dataclass(frozen=True, slots=True)
class Features:
    """A model and how it is trained."""

    devices: int  # the number of devices that train it together
    batch: float  # samples of one device in an iteration
    counts: Counts  # the operation counts of the model

    def row(self) -> tuple[float, ...]:
        """Return the terms of the linear model of an iteration's time, in the order of `COLUMNS`."""
        counts = self.counts
        kinds = (counts.parameters, counts.ordinary, counts.pointwise, counts.depthwise, counts.other)
        per_sample = (self.batch * count for count in kinds)
        return ((self.devices - 1) * counts.parameters, counts.parameters, *per_sample)


def nonnegative(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """Return the non-negative coefficients that minimize the sum of squares of `rows @ coefficients - targets`, by
    trying all subsets of the few columns."""
    import torch  # with which alone priors are fitted

    table, right = (torch.tensor(each, dtype=torch.float64) for each in (rows, targets))
    scales = table.norm(dim=0)
    columns = [column for column in range(table.shape[1]) if scales[column] > 0]
    best, found = float(right @ right), torch.zeros_like(scales)
    for count in range(1, len(columns) + 1):
        for chosen in itertools.combinations(columns, count):
            part = table[:, chosen] / scales[[*chosen]]
            solution = torch.linalg.lstsq(part, right, driver="gelsd").solution
            squares = float(((part @ solution - right) ** 2).sum())
            if solution.min() >= 0 and squares < best * (1 - 1e-12):
                best, found = squares, torch.zeros_like(scales)
                found[[*chosen]] = solution / scales[[*chosen]]
    return [float(value) for value in found]


@dataclass(frozen=True, slots=True)
class Row:
    """A measurement for the fit of a prior."""

    group: str  # the group of the measurement, such as the architecture; the test of the fit leaves whole groups out
    features: Features  # those of the job
    seconds: float  # the time of an iteration that did not wait for data
    service: float  # seconds per sample of its loading
    shared: float = 0.0


class Prior(msgspec.Struct, frozen=True, rename={"coefficients": "seconds"}):
    """A linear model of the seconds of an iteration, and the usual cost of loading."""

    coefficients: dict[str, Annotated[float, msgspec.Meta(ge=0)]]  # seconds per unit of each of COLUMNS
    error: float  # mean relative error on groups that were left out of the fit
    service: Belief  # seconds per sample of loading, over all measurements
    shared: Belief
    rows: int  # the number of measurements of the fit
    made_with: dict[str, str] = {}  # versions of software
    format: str = "torchloader-prior"
    version: int = 1

    def seconds(self, features: Features) -> float:
        """Return the seconds of an iteration that does not wait for data; never negative."""
        return _seconds([self.coefficients[column] for column in COLUMNS], features)

    def guess(self, features: Features) -> Guess:
        """Return the estimates for a job before it has run."""
        seconds = self.seconds(features) / features.batch
        if seconds <= 0:
            raise ValueError(f"the prior has no measurements that resemble {features}; measure the job instead")
        # The mean of the absolute value of a normal error is 0.8 of its standard deviation.
        return Guess(Belief(seconds, (max(self.error, 0.05) / 0.8 * seconds) ** 2), self.service, self.shared)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the prior as JSON, atomically."""
        with whole_file(Path(path)) as unfinished:
            write_bytes(unfinished, msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Prior:
        """Read a saved prior."""
        try:
            found = msgspec.json.decode(Path(path).read_bytes(), type=cls)
            if (found.format, found.version) != ("torchloader-prior", 1):
                raise ValueError(f"it is {found.format} {found.version}, not torchloader-prior 1")
            if missing := [column for column in COLUMNS if column not in found.coefficients]:
                raise ValueError(f"{missing[0]!r} is missing")
            return found
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is not a prior of torchloader: {error}; fit and save it again") from None


def _seconds(coefficients: Sequence[float], features: Features) -> float:
    return math.fsum(c * x for c, x in zip(coefficients, features.row(), strict=True))


def _coefficients(rows: Sequence[Row]) -> list[float]:
    # Divided by the measured time, so that relative errors are minimized.
    table = [[value / row.seconds for value in row.features.row()] for row in rows]
    return nonnegative(table, [1.0] * len(rows))


def fit(rows: Sequence[Row], made_with: Mapping[str, str] | None = None, folds: int = 5) -> Prior:
    """Fit a prior, and test it on groups that are left out of the fit."""
    groups = sorted({row.group for row in rows})
    if len(groups) < 2:
        raise ValueError(f"a prior is tested on groups left out of the fit: there must be two at least, not {groups}")
    parts = min(folds, len(groups))
    fold = {group: place % parts for place, group in enumerate(groups)}
    errors = []
    for part in range(parts):
        coefficients = _coefficients([row for row in rows if fold[row.group] != part])
        for row in rows:
            if fold[row.group] == part:
                errors.append(abs(_seconds(coefficients, row.features) - row.seconds) / row.seconds)
    service = [row.service for row in rows]
    shared = [row.shared for row in rows]
    typical = math.fsum(service) / len(service)
    return Prior(
        dict(zip(COLUMNS, _coefficients(rows), strict=True)),
        math.fsum(errors) / len(errors),
        Belief.of(service, least=0.05 * typical),
        Belief.of(shared, least=0.01 * typical),
        len(rows),
        dict(made_with or {}),
    )
