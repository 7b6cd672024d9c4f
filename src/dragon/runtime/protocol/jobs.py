"""Requests of the nodes of an MPI job to the node that follows it, and to the one that has the names of services."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from dragon.infrastructure.structs import msgspec
from dragon.runtime.protocol.request import BetweenAgents

Answer_co = TypeVar("Answer_co", covariant=True)


class Part(msgspec.Struct, kw_only=True):
    """The part of a job on one of its nodes. `placement` has the node of every rank."""

    name: str  # unique among all jobs of the machine
    backend: str
    home: int  # the node that follows the job's group
    node: int
    ranks: list[int]  # of the processes that are started on the node, in order
    placement: list[int]
    hosts: dict[int, str]  # host names by node
    applications: list[int]  # the number of each rank's program in the job
    library: str = ""  # path of libpmix
    universe: int  # the number of processes that the run has room for
    spawned: bool = False
    crowded: bool = False  # whether the node has more ranks than CPUs, so that a waiting rank should yield
    values: dict[str, str] = {}  # initial keys and values of the job

    @property
    def size(self) -> int:
        """The number of ranks of the whole job."""
        return len(self.placement)


class OfJob(BetweenAgents[Answer_co], Generic[Answer_co]):
    """A request to the node that follows the job of that name. Raises LookupError if the job has ended."""

    job: str


class Exchange(OfJob[dict[int, Any]]):
    """Contribute a node's data under a key. Replies with the data of all `nodes`, once all have contributed."""

    key: str
    nodes: list[int]
    node: int
    data: Any


class JobFailed(OfJob[None]):
    """Fail the job: "rank N …" and `what`. The other ranks get a moment to end by themselves, unless `at_once`."""

    rank: int
    what: str
    code: int
    at_once: bool


class JobBegun(OfJob[None]):
    """Report that a rank has called MPI_Init, which returns when all ranks have called it."""


class RankMissing(OfJob[None]):
    """Report that a rank has ended without MPI_Init, with that exit code."""

    rank: int
    code: int


class RelayLost(OfJob[None]):
    """Report that the process that the site's launcher started for a rank has ended before the rank."""

    rank: int


class Program(msgspec.Struct, frozen=True):
    """Ranks that MPI_Comm_spawn starts. `host` and `folder` may be empty; `values` are initial keys and values."""

    count: int
    executable: str
    arguments: list[str]
    folder: str = ""
    host: str = ""
    values: dict[str, str] = {}


class SpawnRanks(OfJob[None]):
    """Start more ranks, as a new job. Raises LookupError, ValueError."""

    rank: int
    programs: list[Program]


class LaunchEnd(OfJob[str]):
    """Wait for the site's launcher that started the job, and return how it ended. Raises LookupError."""


# ---- names of services


class OfService(BetweenAgents[Answer_co], Generic[Answer_co]):
    """A request to the first node about the name of a service."""

    service: str


class Publish(OfService[None]):
    """Publish the port of a service (MPI_Publish_name)."""

    port: str


class Unpublish(OfService[None]):
    """Withdraw the name of a service (MPI_Unpublish_name). Raises LookupError."""


class LookUp(OfService[str]):
    """Return the port of a service (MPI_Lookup_name). Raises LookupError."""
