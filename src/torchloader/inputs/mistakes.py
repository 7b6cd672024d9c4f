"""What is wrong in what somebody wrote, said so that they find it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchloader.inputs.job import Job

__all__ = ["InputError", "Mistake", "Workload"]


@dataclass(frozen=True, slots=True)
class Mistake:
    """A place in a file, what is there, and what is expected.

    `row` counts from 1 as editors do and is None where the whole file or an entry without a known line is meant;
    `column` is the column's name, or the path of the field. `whole` is whether it is no job's, but the whole file's.
    """

    file: str
    row: int | None
    column: str
    found: str
    expected: str
    whole: bool = False

    @property
    def told(self) -> str:
        """As a line for who runs what is right."""
        return str(self) if self.whole else f"{self}; this job is left out"

    def __str__(self) -> str:
        place = [self.file]
        if self.row is not None:
            place.append(f"row {self.row}")
        if self.column:
            place.append(f"{'column ' if self.row is not None else ''}{self.column}")
        return f"{', '.join(place)}: found {self.found}, expected {self.expected}"


class InputError(ValueError):
    """A file that cannot be used. `mistakes` are all that is wrong with it."""

    def __init__(self, mistakes: Sequence[Mistake]) -> None:
        super().__init__("\n".join(str(mistake) for mistake in mistakes))
        self.mistakes = tuple(mistakes)


@dataclass(frozen=True, slots=True)
class Workload:
    """The jobs of a file that can be run, in its order, and what is wrong with the others."""

    jobs: tuple[Job, ...]
    errors: tuple[Mistake, ...] = ()
