"""Requests of agents to each other on behalf of their processes, and between agents and the front end.

An agent sends only a bounded number of bytes of output that Shown has not acknowledged (`output_window` of the
settings). So a terminal that is slow or stopped blocks the writers and does not fill the front end's memory.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from dragon.infrastructure.membership import Member
from dragon.infrastructure.messages import Instance, Spawn
from dragon.infrastructure.start_request import Name
from dragon.infrastructure.structs import msgspec
from dragon.runtime.protocol.request import BetweenAgents, Request

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
    data: object


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


class Members(BetweenAgents[list[Member]]):
    """Return all nodes of the run. The reply is sent before any other request is served."""


class StartFor(BetweenAgents[list[tuple[int, list[int]]]]):
    """Start processes. Replies with their puids. If a template names a record of the requesting node, replies once
    its processes were started, with the words of their records here, and reports their ends by MembersEnded. With
    `part` they are ranks of an MPI job."""

    templates: list[Spawn]
    instances: list[Instance]
    part: Part | None


class WriteFor(BetweenAgents[None]):
    """Write output of a process to a descriptor of its creator, see Streams.keep(), or to the channel of its reader.
    Nothing opens a channel, and None ends the output. Replies once more may be written."""

    name: Name
    data: bytes | None


# ---- objects


class AnnounceFor(BetweenAgents[None]):
    """Keep an object alive until `count` processes of a node have attached to it."""

    node: int
    name: Name
    count: int


# ---- without an answer


class Outside(BetweenAgents[None]):
    """The receiving node does not belong to the run any more."""

    reason: str


class SignalProcess(BetweenAgents[None]):
    """Send a signal to a process."""

    puid: int
    number: int


class KillStarted(BetweenAgents[None]):
    """Kill the processes of a StartFor whose reply was lost: the members of a group with these names, or, without a
    group, the process of this record of the requesting node."""

    group: int
    names: list[str]
    record: Name


class MemberEvent(msgspec.Struct, frozen=True, array_like=True):
    """A member of a group has ended, with `text` as its last output on stderr; or it `failed` to start, because of
    `text` and the error number. Or a process of no group has ended, whose creator has that `record` of it."""

    puid: int
    group: int
    text: str
    code: int = 127
    failed: bool = False
    error: int = 0
    record: Name | None = None


class MembersEnded(BetweenAgents[None]):
    """Events of members of groups, and of processes, that the receiving node follows."""

    events: list[MemberEvent]


# ---- from the front end to an agent


class OfFrontEnd(Request[Answer_co], Generic[Answer_co]):
    """A request that only the front end sends to an agent."""


class StartHead(OfFrontEnd[None]):
    """Start the head process, which ignores the `signals` that the front end ignores. For the first node only."""

    executable: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str
    signals: list[int]


class SignalHead(OfFrontEnd[None]):
    """Send a signal to the head process."""

    number: int


class Input(OfFrontEnd[None]):
    """The next piece of the front end's standard input, empty at its end; follows WantsInput."""

    data: bytes


class Shown(OfFrontEnd[None]):
    """`count` more bytes of this agent's output have been written to the terminal."""

    count: int


class NodeLost(OfFrontEnd[None]):
    """A node is lost, by the decision with the number `epoch`."""

    index: int
    host_name: str
    reason: str
    epoch: int


class Decided(OfFrontEnd[None]):
    """A replicated shard has these holders, by the decision with the number `epoch`."""

    number: str
    manager: int
    holders: list[int]
    epoch: int


class Clear(OfFrontEnd[None]):
    """End every process on this node, before the head process is restarted. Replies once they have ended."""


# ---- from an agent; besides, it sends Members and EndRun


class Wrote(Request[None]):
    """Output of a process to descriptor 1 or 2."""

    number: int
    data: bytes


class WantsInput(Request[None]):
    """The head process's standard input has room."""


class HeadExited(Request[None]):
    """The head process ended with that exit code (negative: by a signal), or could not be started."""

    code: int
    error: str = ""


class Proposal(Request[None]):
    """Propose other holders for a replicated shard. `epoch` is the decision that gave it the holders `before`, `seen`
    the last loss that the node has received."""

    number: str
    manager: int
    epoch: int
    seen: int
    before: list[int]
    holders: list[int]


class Writing(Request[None]):
    """Pending writes take some time; Bye follows when they are done."""


class Bye(Request[None]):
    """Everything on this node has ended, and the connection closes."""
