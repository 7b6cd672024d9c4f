"""What the nodes of a job tell each other of it."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

__all__ = ["JobOverError", "Joining", "Part", "Serving", "Way"]


class JobOverError(Exception):
    """The job has ended, or is being ended, while one of its nodes waited for the others."""


class Part(msgspec.Struct, kw_only=True):
    """A job as one of its nodes is told of it. `placement` is the node of every rank."""

    name: str  # unique among all jobs of the machine
    backend: str
    home: int  # the node that follows the job's group
    node: int
    ranks: list[int]  # of the processes that are started there, in their order
    placement: list[int]
    hosts: dict[int, str]  # by node
    applications: list[int]  # of every rank: the number of its program in the job
    library: str = ""  # libpmix
    universe: int  # processes that the run has room for
    spawned: bool = False
    crowded: bool = False  # on the node that serves it: more ranks than CPUs, so that who waits should yield
    values: dict[str, str] = {}  # what is known from the beginning

    @property
    def size(self) -> int:
        return len(self.placement)


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

    def ask(self, operation: str, **arguments: Any) -> Awaitable[Any]:
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
