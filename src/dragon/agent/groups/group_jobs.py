"""Groups whose members are the ranks of MPI jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec

from dragon.agent.groups.group import Group, Member
from dragon.agent.mpi.job import Job
from dragon.agent.mpi.jobs import Jobs
from dragon.agent.mpi.launch import Launch
from dragon.infrastructure.facts import PMIBackend
from dragon.infrastructure.messages import Output, Spawn
from dragon.infrastructure.node_desc import choose
from dragon.infrastructure.policy import Policy
from dragon.infrastructure.system import restored, sendable
from dragon.runtime.nodes import find_node, run_nodes
from dragon.runtime.placement import search_executable
from dragon.runtime.protocol.jobs import Part, Program

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
