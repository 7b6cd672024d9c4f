"""The members of groups, and the MPI jobs whose ranks they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from dragon.agent.mpi.job import Job
from dragon.agent.mpi.jobs import Jobs
from dragon.agent.mpi.launched import Launch
from dragon.agent.objects.peers import Peers
from dragon.agent.output.streams import Streams
from dragon.agent.processes.registry import Registry
from dragon.agent.processes.starting import Processes
from dragon.infrastructure.facts import PMIBackend
from dragon.infrastructure.messages import Output, Spawn
from dragon.infrastructure.policy import Policy, choose
from dragon.infrastructure.system import restored, sendable
from dragon.runtime.connection import Connection, connect_pipes
from dragon.runtime.nodes import find_node, run_nodes
from dragon.runtime.placement import search_executable
from dragon.runtime.protocol.groups import GroupSettings
from dragon.runtime.protocol.jobs import Part, Program


@dataclass(frozen=True)
class Home:
    """What groups use of the node that follows them."""

    node: int
    host_name: str
    registry: Registry
    processes: Processes
    streams: Streams
    jobs: Jobs
    peers: Peers | None

    def host(self, node: int) -> str:
        """Return the host name of a node."""
        return self.peers.host(node) if self.peers is not None else self.host_name


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
                streams = [replace(each) for each in self.template.streams]
                self.connections = connect_pipes(streams)
                return streams
        return []

    def disconnect(self) -> None:
        """Close our ends of its pipes."""
        while self.connections:
            self.connections.popitem()[1].close()


class _Group(Protocol):
    """What the jobs of a group use of it."""

    settings: GroupSettings
    home: Home
    members: list[Member]

    def job_failed(self, member: Member, what: str, code: int, at_once: bool) -> None:
        """Handle the failure of a rank."""

    def extend(self, templates: list[Spawn]) -> list[Member]:
        """Add members while it runs."""

    async def start_members(self, members: list[Member], job: Job | None = None) -> None:
        """Start members."""


class GroupJobs:
    """The MPI jobs of a group: at first one of all members, and another for each MPI_Comm_spawn."""

    def __init__(self, group: _Group) -> None:
        self._group = group
        self._jobs: list[Job] = []
        self._launches: dict[str, Launch] = {}  # by job, where the site's launcher starts it

    def open(self, members: list[Member]) -> Job:
        """Open a job whose ranks are these members, in order."""
        job = self._open(members, [0] * len(members), {}, spawned=False)
        if self._group.settings.pmi == PMIBackend.LAUNCHER:
            launch = self._launches[job.name] = Launch(job, self._group.settings.launcher, self._hosts(job))
            job.launched, job.relay_lost = launch.ended, launch.relay_lost
        return job

    def _open(self, members: list[Member], applications: list[int], values: dict[str, str], spawned: bool) -> Job:
        job = Job(
            placement=[member.template.node for member in members],
            applications=applications,
            fail=lambda rank, what, code, at_once: self._group.job_failed(members[rank], what, code, at_once),
            spawn=partial(self._spawn, members),
            backend=self._group.settings.pmi,
            library=self._group.settings.pmix_library,
            values=values,
            spawned=spawned,
            begun=spawned,  # the ranks that spawn it wait for its ranks
        )
        self._group.home.jobs.follow(job)
        self._jobs.append(job)
        return job

    def part(self, job: Job, node: int, ranks: Sequence[int]) -> Part:
        """Return the description of a job for a node that is to start these ranks."""
        return job.part(self._group.home.node, node, ranks, self._hosts(job))

    def _hosts(self, job: Job) -> dict[int, str]:
        return {node: self._group.home.host(node) for node in set(job.placement)}

    def give_up(self, why: str) -> None:
        """Abort the launchers after some members could not be started, so that others do not wait for them."""
        for launch in self._launches.values():
            launch.give_up(why)

    def withdraw(self) -> None:
        """Abort the launchers of the group, which is being ended, if they have not started its ranks yet."""
        for launch in self._launches.values():
            launch.withdraw()

    def close(self) -> list[Job]:
        """Close the jobs of the group, whose members have ended, and return them."""
        jobs, self._jobs = self._jobs, []
        for job in jobs:
            self._group.home.jobs.forget(job)
            if job.name in self._launches:
                self._launches.pop(job.name).close()
        return jobs

    async def _spawn(self, parents: list[Member], rank: int, programs: list[Program]) -> None:
        """Execute MPI_Comm_spawn: add members to the group, which form a new job. Raises LookupError, ValueError."""
        parent = parents[rank].template
        templates: list[Spawn] = []
        applications: list[int] = []
        values: dict[str, str] = {}
        for number, program in enumerate(programs):
            template = self._template(parent, program)
            host = find_node(program.host) if program.host else None
            if program.host and host is None:
                raise LookupError(f"the run has no node {program.host!r}")
            for _ in range(program.count):
                index = len(self._group.members) + len(templates)
                node = host or choose(run_nodes(), index, Policy.Distribution.DEFAULT)
                templates.append(replace(template, node=node.index))
                applications.append(number)
            values.update(program.values)
        members = self._group.extend(templates)
        await self._group.start_members(members, self._open(members, applications, values, spawned=True))

    @staticmethod
    def _template(parent: Spawn, program: Program) -> Spawn:
        folder = program.folder or restored(parent.folder)
        try:
            executable = search_executable(program.executable, folder)
        except AttributeError as error:
            raise LookupError(str(error)) from error
        return replace(
            parent,
            entry="",
            payload=b"",
            payload_in=None,
            payload_size=0,
            attached=[],
            executable=executable,
            arguments=program.arguments,
            folder=sendable(folder),
            cpus=[],
            streams=[Output("null"), Output(), Output("tee")],
        )
