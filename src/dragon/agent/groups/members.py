"""The members of groups, and what groups use of their node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dragon.agent.mpi.jobs import Jobs
from dragon.agent.output.streams import Streams
from dragon.agent.processes.registry import Registry
from dragon.agent.processes.starting import Processes
from dragon.infrastructure.messages import Output, Spawn
from dragon.infrastructure.structs import msgspec
from dragon.runtime.connection import Connection, connect_pipes

if TYPE_CHECKING:
    from dragon.agent.wire.links import Links


@dataclass(frozen=True)
class Home:
    """What groups use of the node that follows them."""

    node: int
    host_name: str
    registry: Registry
    processes: Processes
    streams: Streams
    jobs: Jobs
    links: Links | None

    def host(self, node: int) -> str:
        return self.links.host_name(node) if self.links is not None else self.host_name


@dataclass(eq=False)
class Member:
    """A slot in a group; a restarted member is a new process in the same slot."""

    rank: int
    template: Spawn
    puid: int = 0
    alive: bool = False
    code: int | None = None
    restarts: int = 0
    signals: list[int] = field(default_factory=list)  # sent to it when it is started
    connections: dict[int, Connection] = field(default_factory=dict)  # by stream: our ends, for clients that ask

    def connect(self) -> list[Output]:
        """Return its streams if some of them are PIPEs of its own, else an empty list (those of the template)."""
        for stream in self.template.streams:
            if stream.kind == "pipe":
                self.disconnect()
                streams = [msgspec.structs.replace(each) for each in self.template.streams]
                self.connections = connect_pipes(streams)
                return streams
        return []

    def disconnect(self) -> None:
        while self.connections:
            self.connections.popitem()[1].close()
