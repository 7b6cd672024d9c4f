"""What agents ask of each other for their processes, and what they tell each other without an answer."""

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
    "FlowClosed",
    "FlowCut",
    "FlowFailed",
    "FlowOrphaned",
    "FlowTaken",
    "Left",
    "LinkBroken",
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
]


class Members(BetweenAgents[list[Member]], tag="members", frozen=True):
    """All nodes of the run, which is answered before anything else is served."""


class StartFor(BetweenAgents[list[tuple[int, Name]]], tag="start", frozen=True):
    """Start processes; their puids and the names of their records, which the node that asks attaches to if they are
    `followed`. With `part` they are ranks of an MPI job."""

    templates: list[Spawn]
    instances: list[Instance]
    followed: bool
    part: Part | None


# ---- objects


class Act(BetweenAgents[tuple[bool, Any]], tag="object", frozen=True):
    """Do something with an object for a process of the node that asks: whether it was done, and its result."""

    pid: int
    operation: Operation


class AnnounceFor(BetweenAgents[None], tag="announce", frozen=True):
    """Let an object live until so many processes of a node have attached to it."""

    node: int
    name: Name
    count: int


class MakeFor(BetweenAgents[Name], tag="make", frozen=True):
    """Make an object of that class; it lives until a process of the node that asks has attached to it."""

    kind: str
    given: tuple[Any, ...]
    options: dict[str, Any]


class OpenFlow(BetweenAgents[None], tag="flow_open", frozen=True):
    """Take the messages of that flow for a channel. Raises DestroyedError where that is gone."""

    number: int
    name: Name


# ---- notices


class Notice(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Something that an agent is told."""


class Outside(Notice, tag="outside", frozen=True):
    """The node that is told so does not belong to the run any more."""

    reason: str


class LinkBroken(Notice, tag="link_broken", frozen=True):
    """Another connection between the two broke; what came over it last may be lost."""

    reason: str


class Left(Notice, tag="left", frozen=True):
    """A process has ended."""

    pid: int


class Released(Notice, tag="release", frozen=True):
    """A process has dropped its handle of an object."""

    pid: int
    name: Name


class FlowTaken(Notice, tag="flow_taken", frozen=True):
    """So many bytes more of a flow have arrived."""

    number: int
    size: int


class FlowFailed(Notice, tag="flow_failed", frozen=True):
    """Messages of a flow could not be put, for an error of that class and text. It is over."""

    number: int
    error: tuple[str, str]


class FlowOrphaned(Notice, tag="flow_orphan", frozen=True):
    """Nobody writes to a flow any more."""

    number: int


class FlowClosed(Notice, tag="flow_close", frozen=True):
    """All of a flow was sent."""

    number: int


class FlowCut(Notice, tag="flow_cut", frozen=True):
    """The connection broke on which the flows up to that number were opened: they are over."""

    number: int


class SignalProcess(Notice, tag="kill", frozen=True):
    """Send a process a signal."""

    puid: int
    number: int


class MemberEvent(msgspec.Struct, frozen=True, array_like=True):
    """A member of a group has ended, after it last wrote `text` to stderr; or it `failed` to start, for what `text`
    and the error number say."""

    puid: int
    group: int
    text: str
    code: int = 127
    failed: bool = False
    error: int = 0


class MembersEnded(Notice, tag="group", frozen=True):
    """What happened to members of groups that the node follows that is told."""

    events: list[MemberEvent]
