"""Groups whose members are the ranks of MPI jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from dragon.agent.groups.group import Group, Member
from dragon.agent.mpi.job import Job
from dragon.agent.mpi.jobs import Jobs
from dragon.agent.mpi.launched import Launch
from dragon.agent.objects.peers import Peers
from dragon.agent.output.streams import Streams
from dragon.agent.processes.registry import Registry
from dragon.agent.processes.starting import Processes, Spawner
from dragon.infrastructure.facts import PMIBackend, node_of_puid
from dragon.infrastructure.messages import Instance, Output, Spawn
from dragon.infrastructure.policy import Policy, choose
from dragon.infrastructure.system import restored, sendable
from dragon.runtime.nodes import find_node, run_nodes
from dragon.runtime.placement import search_executable
from dragon.runtime.protocol.agents import MemberEvent, MembersEnded
from dragon.runtime.protocol.jobs import Part, Program

_BATCH_S = 0.05  # seconds


class GroupNotices:
    """Each notice wakes another agent, which takes as long as many starts. So while this node is starting processes,
    successful ends are batched."""

    def __init__(self, peers: Peers, spawner: Spawner) -> None:
        self._peers = peers
        self._spawner = spawner
        self._loop = asyncio.get_running_loop()
        self._untold: dict[int, list[MemberEvent]] = {}

    def tell(self, home: int, event: MemberEvent) -> None:
        """Notify the node that follows a group of an event of a member here. Events of a node are sent in order."""
        untold = self._untold.setdefault(home, [])
        untold.append(event)
        if event.failed or event.code != 0 or event.record is not None or not self._spawner.unanswered:
            self._send(home)
        elif len(untold) == 1:
            self._loop.call_later(_BATCH_S, self._send, home)

    def _send(self, home: int) -> None:
        events = self._untold.pop(home, [])
        if events and home not in self._peers.lost:
            self._peers.links.notify(home, MembersEnded(events))


# The templates of some members, and their instances.
Requests = tuple[list[Spawn], list[Instance]]


class MemberProcesses:
    """Starts the processes of members, sends them signals, and chooses another node for those whose node is lost."""

    def __init__(
        self, node: int, registry: Registry, processes: Processes, streams: Streams, peers: Peers | None
    ) -> None:
        self._node = node
        self._registry = registry
        self._processes = processes
        self._streams = streams
        self._peers = peers

    def start_here(self, group: Group, members: list[Member], requests: Requests, part: Part | None = None) -> None:
        """Start members on this node; with `part` as the ranks of a prepared job. Raises OSError."""
        self._take(group, members, self._processes.start_here(*requests, group.descriptors, part))

    async def start_on(
        self, node: int, group: Group, members: list[Member], requests: Requests, part: Part | None
    ) -> None:
        """Start members on any node. Raises NodeLostError, OSError, RuntimeError, RemoteError."""
        if self._peers is not None and node != self._node:
            kept = self._streams.keep(group.descriptors, node, len(members))
            self._take(group, members, await self._processes.start_on(node, *requests, kept, part))
            return
        if self._peers is not None:
            await self._processes.announce_all(node, *requests)
        if part is not None:
            await self._processes.prepare(part)
        self.start_here(group, members, requests, part)

    def _take(self, group: Group, members: list[Member], started: Sequence[tuple[int, object]]) -> None:
        for member, (puid, _) in zip(members, started, strict=True):
            member.puid = puid
            group.by_puid[puid] = member
            signals, member.signals = member.signals, []
            for number in signals:
                self.kill(member, number)

    def kill(self, member: Member, number: int) -> None:
        """Send a member a signal; if it is being started, it gets the signal afterwards."""
        if not member.puid:
            member.signals.append(number)
        elif node_of_puid(member.puid) != self._node and self._peers is not None:
            self._peers.kill(member.puid, number)
        else:
            self._registry.signal(member.puid, number)

    def move(self, member: Member) -> None:
        """Choose another node for a member whose node is lost."""
        if self._peers is not None and member.template.node in self._peers.lost:
            node = choose(run_nodes(), member.rank, Policy.Distribution.DEFAULT)
            member.template = msgspec.structs.replace(member.template, node=node.index, cpus=[])


# Group, member, what it did, exit code, whether the whole job is to end at once.
Fail = Callable[[Group, Member, str, int, bool], None]
Extend = Callable[[Group, list[Spawn]], list[Member]]
Start = Callable[[Group, list[Member], Job], Any]
Host = Callable[[int], str]


class GroupJobs:
    """The MPI jobs of the groups that a node follows: at first one of all members, and another for each
    MPI_Comm_spawn."""

    def __init__(self, node: int, jobs: Jobs, fail: Fail, extend: Extend, start: Start, host: Host) -> None:
        self._node = node
        self._jobs = jobs
        self._fail = fail
        self._extend = extend
        self._start = start
        self._host = host
        self._by_group: dict[int, list[Job]] = {}
        self._launches: dict[str, Launch] = {}  # by job, where the site's launcher starts it

    def open(self, group: Group, members: list[Member]) -> Job:
        """Open a job whose ranks are these members, in order."""
        job = self._open(group, members, [0] * len(members), {}, spawned=False)
        if group.pmi == PMIBackend.LAUNCHER:
            launch = self._launches[job.name] = Launch(job, group.launcher, self._hosts(job))
            job.launched, job.relay_lost = launch.ended, launch.relay_lost
        return job

    def _open(
        self, group: Group, members: list[Member], applications: list[int], values: dict[str, str], spawned: bool
    ) -> Job:
        job = Job(
            placement=[member.template.node for member in members],
            applications=applications,
            fail=lambda rank, what, code, at_once: self._fail(group, members[rank], what, code, at_once),
            spawn=partial(self._spawn, group, members),
            backend=group.pmi,
            library=group.pmix_library,
            values=values,
            spawned=spawned,
            begun=spawned,  # the ranks that spawn it wait for its ranks
        )
        self._jobs.follow(job)
        self._by_group.setdefault(group.number, []).append(job)
        return job

    def part(self, job: Job, node: int, ranks: Sequence[int]) -> Part:
        """Return the description of a job for a node that is to start these ranks."""
        return job.part(self._node, node, ranks, self._hosts(job))

    def _hosts(self, job: Job) -> dict[int, str]:
        return {node: self._host(node) for node in set(job.placement)}

    def give_up(self, group: Group, why: str) -> None:
        """Abort the launchers of a group after some members could not be started, so that others do not wait
        for them."""
        for launch in self._launches_of(group):
            launch.give_up(why)

    def withdraw(self, group: Group) -> None:
        """Abort the launchers of a group that is being ended, if they have not started its ranks yet."""
        for launch in self._launches_of(group):
            launch.withdraw()

    def _launches_of(self, group: Group) -> list[Launch]:
        jobs = self._by_group.get(group.number, [])
        return [self._launches[job.name] for job in jobs if job.name in self._launches]

    def close(self, group: Group) -> list[Job]:
        """Close the jobs of a group whose members have ended, and return them."""
        jobs = self._by_group.pop(group.number, [])
        for job in jobs:
            self._jobs.forget(job)
            if job.name in self._launches:
                self._launches.pop(job.name).close()
        return jobs

    async def _spawn(self, group: Group, parents: list[Member], rank: int, programs: list[Program]) -> None:
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
                index = len(group.members) + len(templates)
                node = host or choose(run_nodes(), index, Policy.Distribution.DEFAULT)
                templates.append(msgspec.structs.replace(template, node=node.index))
                applications.append(number)
            values.update(program.values)
        members = self._extend(group, templates)
        job = self._open(group, members, applications, values, spawned=True)
        await self._start(group, members, job)

    @staticmethod
    def _template(parent: Spawn, program: Program) -> Spawn:
        folder = program.folder or restored(parent.folder)
        try:
            executable = search_executable(program.executable, folder)
        except AttributeError as error:
            raise LookupError(str(error)) from error
        return msgspec.structs.replace(
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
