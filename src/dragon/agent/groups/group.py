"""The records of a group and its members on the node that follows it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

import msgspec

from dragon.infrastructure.messages import Instance, Output, Spawn
from dragon.runtime.connection import Connection, connect_pipes
from dragon.runtime.handle import Words
from dragon.runtime.protocol.agents import MemberEvent
from dragon.runtime.protocol.groups import GroupSettings


class Member:
    """A slot in a group; a restarted member is a new process in the same slot."""

    def __init__(self, rank: int, template: Spawn) -> None:
        self.rank = rank
        self.template = template
        self.puid = 0
        self.alive = False
        self.code: int | None = None
        self.restarts = 0
        self.signals: list[int] = []  # sent to it when it is started
        self.connections: dict[int, Connection] = {}  # by stream: the agent's ends, for clients that request them

    def connect(self) -> list[Output]:
        """Return its streams if some of them are PIPEs of its own, else an empty list (those of the template)."""
        self.disconnect()
        if all(stream.kind != "pipe" for stream in self.template.streams):
            return []
        streams = [msgspec.structs.replace(stream) for stream in self.template.streams]
        self.connections = connect_pipes(streams)
        return streams

    def disconnect(self) -> None:
        """Close the agent's ends of all its pipes."""
        for stream in list(self.connections):
            self.close_stream(stream)

    def close_stream(self, stream: int) -> None:
        """Close the agent's end of one stream's pipe, if it is open."""
        if stream in self.connections:
            self.connections.pop(stream).close()


class Group:
    """The agent's record of one group."""

    def __init__(self, number: int, settings: GroupSettings, descriptors: Sequence[int]) -> None:
        self.number = number
        self.restart = settings.restart
        self.ignore_errors = settings.ignore_error_on_exit
        self.walltime = settings.walltime
        self.name = settings.name or f"group-{number}"
        self.creator = settings.creator
        self.pmi = settings.pmi
        self.library = settings.mpi_library
        self.launcher = settings.launcher
        self.pmix_library = settings.pmix_library
        self.descriptors = [os.dup(fd) for fd in descriptors]
        self.words = Words(1)  # whether any member is alive: processes that wait for their end are woken once
        self._live = 0
        self.members: list[Member] = []
        self.ended: list[tuple[int, int]] = []
        self.failure: str = ""
        self.culprit: Member | None = None  # the member that failed
        self.failed_after_another = False  # whether its failure followed from another one, which is not known yet
        self.failed_codes: list[int] = []
        self.started = False
        self.ending = False
        self.aborter: Member | None = None  # the rank that ended an MPI job
        self.timers: list[asyncio.TimerHandle] = []
        self.by_puid: dict[int, Member] = {}
        # Events of processes that arrived before it was known which members they are, by puid.
        self.early: dict[int, list[MemberEvent]] = {}

    @property
    def live(self) -> int:
        """The number of members that have not ended."""
        return self._live

    @live.setter
    def live(self, count: int) -> None:
        if bool(count) != bool(self._live):
            self.words[0] = int(bool(count))
        self._live = count

    def cancel_timers(self) -> None:
        """Cancel all timers of the group."""
        for timer in self.timers:
            timer.cancel()
        self.timers = []

    def requests(self, members: list[Member]) -> tuple[list[Spawn], list[Instance]]:
        """Return the templates of members, each once, and their instances."""
        templates: list[Spawn] = []
        instances = []
        for member in members:
            if not templates or templates[-1] is not member.template:
                templates.append(member.template)
            name = f"{self.name}-{member.rank}"
            instances.append(Instance(len(templates) - 1, name, member.template.cpus, streams=member.connect()))
        streams = [Output(), Output(), Output("tee")]
        return [t if t.streams else msgspec.structs.replace(t, streams=streams) for t in templates], instances
