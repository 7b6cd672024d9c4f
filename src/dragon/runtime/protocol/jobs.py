"""What the nodes of an MPI job ask the one that follows it, and the one that knows the names of services."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from dragon.runtime.protocol.request import BetweenAgents

__all__ = [
    "Exchange",
    "JobBegun",
    "JobFailed",
    "LaunchEnd",
    "LookUp",
    "OfJob",
    "OfService",
    "Part",
    "Program",
    "Publish",
    "RankMissing",
    "RelayLost",
    "SpawnRanks",
    "Unpublish",
]

Answer_co = TypeVar("Answer_co", covariant=True)


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
        """The number of ranks of the whole job."""
        return len(self.placement)


class OfJob(BetweenAgents[Answer_co], Generic[Answer_co], frozen=True):
    """One of the node that follows the job of that name. Raises LookupError where the job has ended."""

    job: str


class Exchange(OfJob[dict[int, Any]], tag="jobs.exchange", frozen=True):
    """Give what a node has under a key; what all of `nodes` gave, by node, once they have."""

    key: str
    nodes: list[int]
    node: int
    data: Any


class JobFailed(OfJob[None], tag="jobs.fail", frozen=True):
    """Have the job fail: "rank N … " followed by `what`. Others have a moment to come to their own end, but not where
    all is to end `at_once`."""

    rank: int
    what: str
    code: int
    at_once: bool


class JobBegun(OfJob[None], tag="jobs.begun", frozen=True):
    """A rank has called MPI_Init, which returns when all have."""


class RankMissing(OfJob[None], tag="jobs.missing", frozen=True):
    """A rank has ended without MPI_Init, with that exit code."""

    rank: int
    code: int


class RelayLost(OfJob[None], tag="jobs.relay_lost", frozen=True):
    """What the site's launcher had started for a rank has ended before that."""

    rank: int


class Program(msgspec.Struct, frozen=True):
    """Ranks that MPI_Comm_spawn starts. `host` and `folder` may be empty; `values` are known from the beginning."""

    count: int
    executable: str
    arguments: list[str]
    folder: str = ""
    host: str = ""
    values: dict[str, str] = {}


class SpawnRanks(OfJob[None], tag="jobs.spawn", frozen=True):
    """Start more ranks, which are a job of their own. Raises LookupError, ValueError."""

    rank: int
    programs: list[Program]


class LaunchEnd(OfJob[str], tag="jobs.launched", frozen=True):
    """How the site's launcher ended, which had started the job, once it has. Raises LookupError."""


# ---- names of services


class OfService(BetweenAgents[Answer_co], Generic[Answer_co], frozen=True):
    """One of the first node, about the name of a service."""

    service: str


class Publish(OfService[None], tag="jobs.publish", frozen=True):
    """MPI_Publish_name."""

    port: str


class Unpublish(OfService[None], tag="jobs.unpublish", frozen=True):
    """MPI_Unpublish_name. Raises LookupError."""


class LookUp(OfService[str], tag="jobs.look_up", frozen=True):
    """MPI_Lookup_name. Raises LookupError."""
