"""Requests of agents to each other on behalf of their processes, and notices between agents, which have no reply."""

from __future__ import annotations

from typing import Any

import msgspec

from dragon.infrastructure.membership import Member
from dragon.infrastructure.messages import Instance, Name, Spawn
from dragon.runtime.protocol.jobs import Part
from dragon.runtime.protocol.objects import Operation
from dragon.runtime.protocol.request import BetweenAgents

__all__ = [
    "Act",
    "AnnounceFor",
    "FlowArrived",
    "FlowClosed",
    "FlowCut",
    "FlowFailed",
    "FlowOrphaned",
    "FlowStalled",
    "FlowTaken",
    "IsReadable",
    "Left",
    "MakeFor",
    "MemberEvent",
    "Members",
    "MembersEnded",
    "Notice",
    "OpenFlow",
    "Outside",
    "Released",
    "SignalProcess",
    "StartFor",
    "WatchReadable",
    "WriteFor",
]


class Members(BetweenAgents[list[Member]], tag="members", frozen=True):
    """Return all nodes of the run. The reply is sent before any other request is served."""


class StartFor(BetweenAgents[list[tuple[int, Name]]], tag="start", frozen=True):
    """Start processes. Replies with their puids and the names of their records.

    If they are `followed`, the requesting node attaches to the records. With `part` they are ranks of an MPI job.
    """

    templates: list[Spawn]
    instances: list[Instance]
    followed: bool
    part: Part | None


class WriteFor(BetweenAgents[None], tag="write", frozen=True):
    """Write output of a process to a descriptor of its creator; none at its end. Replies once more may be written."""

    number: int
    data: bytes


# ---- objects


class Act(BetweenAgents[tuple[bool, Any]], tag="object", frozen=True):
    """Perform an operation on an object for a process of the requesting node. Replies with (whether it was done,
    result)."""

    pid: int
    operation: Operation


class AnnounceFor(BetweenAgents[None], tag="announce", frozen=True):
    """Keep an object alive until `count` processes of a node have attached to it."""

    node: int
    name: Name
    count: int


class MakeFor(BetweenAgents[Name], tag="make", frozen=True):
    """Make an object of that class, which is kept alive until a process of the requesting node has attached to it."""

    kind: str
    given: tuple[Any, ...]
    options: dict[str, Any]
    made_at: str


class OpenFlow(BetweenAgents[None], tag="flow_open", frozen=True):
    """Accept the messages of a flow for a channel. Raises DestroyedError if the channel does not exist any more.

    Messages that find no memory wait until there is some. `droppable` ones, which both sides can do without, fail the
    flow after ten seconds.
    """

    number: int
    name: Name
    droppable: bool = False


class FlowArrived(BetweenAgents[None], tag="flow_arrived", frozen=True):
    """Wait until the messages of a flow that were sent before are in its channel, or lost."""

    number: int


# ---- notices


class Notice(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A message to an agent without a reply."""


class Outside(Notice, tag="outside", frozen=True):
    """The receiving node does not belong to the run any more."""

    reason: str


class Left(Notice, tag="left", frozen=True):
    """A process has ended."""

    pid: int


class Released(Notice, tag="release", frozen=True):
    """A process has dropped its handle of an object."""

    pid: int
    name: Name


class WatchReadable(Notice, tag="watch_readable", frozen=True):
    """Report whether a channel can be read, now and at each change; with `on` false, do so no more."""

    name: Name
    on: bool


class IsReadable(Notice, tag="is_readable", frozen=True):
    """A channel that the receiving node watches can be read from now on, or cannot."""

    name: Name
    is_readable: bool


class FlowTaken(Notice, tag="flow_taken", frozen=True):
    """`size` more bytes of a flow have arrived."""

    number: int
    size: int


class FlowFailed(Notice, tag="flow_failed", frozen=True):
    """Messages of a flow could not be put, because of an error of that class and text. The flow has ended."""

    number: int
    error: tuple[str, str]


class FlowStalled(Notice, tag="flow_stalled", frozen=True):
    """There has been no memory for messages of a flow for too long. They wait; an `error` of None says that they do not
    any more."""

    number: int
    error: tuple[str, str] | None


class FlowOrphaned(Notice, tag="flow_orphan", frozen=True):
    """A flow has no writers any more."""

    number: int


class FlowClosed(Notice, tag="flow_close", frozen=True):
    """All messages of a flow were sent."""

    number: int


class FlowCut(Notice, tag="flow_cut", frozen=True):
    """The connection of the flows up to that number broke: they have ended."""

    number: int


class SignalProcess(Notice, tag="kill", frozen=True):
    """Send a signal to a process."""

    puid: int
    number: int


class MemberEvent(msgspec.Struct, frozen=True, array_like=True):
    """A member of a group has ended, with `text` as its last output on stderr; or it `failed` to start, because of
    `text` and the error number."""

    puid: int
    group: int
    text: str
    code: int = 127
    failed: bool = False
    error: int = 0


class MembersEnded(Notice, tag="group", frozen=True):
    """Events of members of groups that the receiving node follows."""

    events: list[MemberEvent]
