"""What the node that follows a group knows of it and of its members."""

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

__all__ = ["Group", "Member"]


class Member:
    """One place in a group; a restarted member is a new process in the same place."""

    def __init__(self, rank: int, template: Spawn) -> None:
        self.rank = rank
        self.template = template
        self.puid = 0
        self.alive = False
        self.code: int | None = None
        self.restarts = 0
        self.signals: list[int] = []  # that it gets when it is started
        self.connections: dict[int, Connection] = {}  # by stream: our ends, for whoever asks

    def connect(self) -> list[Output]:
        """Its streams, where some are PIPEs of its own."""
        self.disconnect()
        if all(stream.kind != "pipe" for stream in self.template.streams):
            return []
        streams = [msgspec.structs.replace(stream) for stream in self.template.streams]
        self.connections = connect_pipes(streams)
        return streams

    def disconnect(self) -> None:
        """Close the ends of all its pipes."""
        for stream in list(self.connections):
            self.close_stream(stream)

    def close_stream(self, stream: int) -> None:
        """Close the end of one stream's pipe, if it is open."""
        if stream in self.connections:
            self.connections.pop(stream).close()


class Group:
    """What the agent knows of one group."""

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
        self.words = Words(1)  # whether any member lives: who waits for their end is woken once
        self._live = 0
        self.members: list[Member] = []
        self.ended: list[tuple[int, int]] = []
        self.failure: str = ""
        self.culprit: Member | None = None  # whose failure that is
        self.failed_after_another = False  # which followed from another one's, of which nothing is known yet
        self.failed_codes: list[int] = []
        self.started = False
        self.ending = False
        self.aborter: Member | None = None  # the rank that had an MPI job end
        self.timers: list[asyncio.TimerHandle] = []
        self.by_puid: dict[int, Member] = {}
        # What was told of processes before it was known which members they are, by puid.
        self.early: dict[int, list[MemberEvent]] = {}

    @property
    def live(self) -> int:
        """Members that have not ended."""
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

    def take(self, members: list[Member], puids: list[int]) -> None:
        """These members are these processes now."""
        for member, puid in zip(members, puids, strict=True):
            member.puid = puid
            self.by_puid[puid] = member

    def requests(self, members: list[Member]) -> tuple[list[Spawn], list[Instance]]:
        """Members as instances of as few templates as there are."""
        templates: list[Spawn] = []
        instances = []
        for member in members:
            if not templates or templates[-1] is not member.template:
                templates.append(member.template)
            name = f"{self.name}-{member.rank}"
            instances.append(Instance(len(templates) - 1, name, member.template.cpus, streams=member.connect()))
        streams = [Output(), Output(), Output("tee")]
        return [t if t.streams else msgspec.structs.replace(t, streams=streams) for t in templates], instances
