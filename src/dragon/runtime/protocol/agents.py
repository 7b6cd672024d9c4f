"""Requests of agents to each other on behalf of their processes."""

from __future__ import annotations

import msgspec

from dragon.infrastructure.membership import Member
from dragon.infrastructure.messages import Instance, Name, Spawn
from dragon.runtime.protocol.jobs import Part
from dragon.runtime.protocol.request import BetweenAgents


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
