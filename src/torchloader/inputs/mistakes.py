"""Mistakes in input files, with the place of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchloader.inputs.job import Job


@dataclass(frozen=True, slots=True)
class Mistake:
    """A place in a file, what was found there, and what was expected.

    `row` counts from 1 and is None for the whole file or an entry without a known line; `column` is the column's name,
    or the path of the field. `whole` means that it concerns the whole file, not one job.
    """

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
