"""What the nodes of a job exchange about it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from dragon.runtime.protocol.jobs import OfJob, OfService

__all__ = ["JobOverError", "Joining", "Serving", "Way"]


Answer = TypeVar("Answer")


class JobOverError(Exception):
    """The job ended, or is being ended, while one of its nodes waited for the others."""


class Joining(NamedTuple):
    """What a rank is started with.

    Attributes:
        descriptors: file descriptors that it inherits, by the variables that hold their numbers. The process that
            starts it closes them.
        defaults: variables that its template may override
    """

    environment: Mapping[str, str]
    descriptors: Mapping[str, int] = {}
    defaults: Mapping[str, str] = {}


class Way(Protocol):
    """The connection from a node of a job to the node that follows the job."""

    def exchange(self, key: str, nodes: list[int], data: Any) -> Awaitable[dict[int, Any]]:
        """Return what each of these nodes gives under that key, by node, once all have. Raises JobOverError."""

    def ask(self, request: OfJob[Answer] | OfService[Answer]) -> asyncio.Future[Answer]:
        """Ask the node that follows the job, or the one that keeps the names of services."""

    def relay_lost(self, rank: int) -> None:
        """Report that the relay that the site's launcher started for a rank has ended before the rank."""

    def fail(self, rank: int, what: str, code: int, at_once: bool = False) -> None:
        """Report that a rank makes the job fail: "rank N … ", followed by `what`.

        The other ranks have a moment to end on their own, unless `at_once` is set.
        """

    def begun(self) -> None:
        """Report that a rank has called MPI_Init, which returns when all have."""

    def missing(self, rank: int, code: int) -> None:
        """Report that a rank has ended without MPI_Init, with that exit code."""


class Serving(Protocol):
    """One node's side of a job."""

    def join(self, rank: int) -> Joining:
        """Return what a rank that is about to be started is given."""

    def ended(self, rank: int, code: int) -> asyncio.Future[None] | None:
        """Note that the process of a rank has ended. Returns a future if that is handled later."""

    def close(self) -> bool:
        """Finish: all processes have ended, or could not be started. Return whether all followed MPI's rules."""
