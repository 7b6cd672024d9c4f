"""What the nodes of a job tell each other of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from dragon.runtime.protocol.jobs import OfJob, OfService

__all__ = ["JobOverError", "Joining", "Serving", "Way"]


Answer = TypeVar("Answer")


class JobOverError(Exception):
    """The job has ended, or is being ended, while one of its nodes waited for the others."""


class Joining(NamedTuple):
    """What a rank is started with. `descriptors` are those it inherits, by the variables that tell it their numbers;
    whoever starts it closes them. `defaults` are variables that its template may set otherwise."""

    environment: Mapping[str, str]
    descriptors: Mapping[str, int] = {}
    defaults: Mapping[str, str] = {}


class Way(Protocol):
    """The way from a node of a job to the node that follows it."""

    def exchange(self, key: str, nodes: list[int], data: Any) -> Awaitable[dict[int, Any]]:
        """What every one of these nodes gives under that key, by node, once all have. Raises JobOverError."""

    def ask(self, request: OfJob[Answer] | OfService[Answer]) -> asyncio.Future[Answer]:
        """The answer of the node that follows the job, or of the one that knows the names of services."""

    def relay_lost(self, rank: int) -> None:
        """What the site's launcher had started for a rank has ended before that."""

    def fail(self, rank: int, what: str, code: int, at_once: bool = False) -> None:
        """A rank makes the job fail: "rank N … " followed by `what`. Others have a moment to come to their own end,
        but not where all is to end `at_once`."""

    def begun(self) -> None:
        """A rank has called MPI_Init, which returns when all have."""

    def missing(self, rank: int, code: int) -> None:
        """A rank has ended without MPI_Init, with that exit code."""


class Serving(Protocol):
    """One node's side of a job."""

    def join(self, rank: int) -> Joining:
        """What a rank that is about to be started is given."""

    def ended(self, rank: int, code: int) -> None:
        """The process of a rank has ended."""

    def close(self) -> bool:
        """All processes have ended, or could not be started. Whether all did as MPI asks of them."""
