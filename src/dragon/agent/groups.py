"""A group on the node that follows it: it starts its members, restarts them or ends them together, and says how they
ended.

It is Idle, then Running, then Idle again when its last member has ended, or Error if a member failed. The first failure
is the one that is reported; unless failures are to be ignored, the other members are then ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from signal import Signals
from typing import Any

from dragon import _core
from dragon.agent.mpi.job import Job, follows_another
from dragon.agent.mpi.launched import Launch
from dragon.agent.processes.starting import Processes
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.facts import PUID_NODE_SHIFT, PMIBackend, node_of_puid
from dragon.infrastructure.messages import Instance, Spawn
from dragon.infrastructure.policy import Policy, choose
from dragon.infrastructure.start_request import Name, Output
from dragon.infrastructure.structs import msgspec
from dragon.infrastructure.system import may_pass, restored, sendable, what_to_raise
from dragon.runtime.connection import Connection, connect_pipes
from dragon.runtime.log import runtime_log
from dragon.runtime.nodes import find_node, run_nodes
from dragon.runtime.placement import search_executable
from dragon.runtime.protocol import groups
from dragon.runtime.protocol.agents import MemberEvent, Part, Program, SignalProcess
from dragon.runtime.protocol.request import Caller
from dragon.runtime.rpc import RemoteError, serves, serves_each, serves_for
from dragon.signals import how_ended

log = runtime_log("groups")

_KILL_DELAY_S = 5.0
_RESTART_PAUSES = (0.0, 0.0, 0.1, 0.5, 1.0)  # seconds before each restart of a member; the last is repeated
_FOR_OWN_END = 1.0  # seconds between a member's failure and the end of the others


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
                streams = self.template.streams.copy()
                self.connections = connect_pipes(streams)
                return streams
        return []

    def disconnect(self) -> None:
        while self.connections:
            self.connections.popitem()[1].close()


class Group:
    """One group. `descriptors` are its creator's streams."""

    def __init__(
        self,
        number: int,
        settings: groups.GroupSettings,
        templates: list[Spawn],
        places: list[groups.Places],
        descriptors: Sequence[int],
        home: Processes,
    ) -> None:
        self.number, self.settings, self.home = number, settings, home
        self.name = self.settings.name or f"group-{number}"
        self.restart = self.settings.restart
        self.words = _core.Words(1)  # whether any member is alive: processes that wait for their end are woken once
        self.live = 0  # members that have not ended
        self.members: list[Member] = []
        self.failure = ""
        self.ending = False
        self._ended: list[tuple[int, int]] = []
        self._failed_codes: list[int] = []
        self._culprit: Member | None = None  # the member that failed
        self._followed = False  # whether its failure followed from another one, which is not known yet
        self._aborter: Member | None = None  # the rank that ended an MPI job
        self._started = self._closed = False
        self._timers: set[asyncio.Task[None]] = set()  # end with the last member
        self._restarts: set[asyncio.Task[None]] = set()
        self._by_puid: dict[int, Member] = {}
        # Events of processes that arrived before it was known which members they are, by puid.
        self._early: dict[int, list[MemberEvent]] = {}
        self._jobs = GroupJobs(self) if self.settings.pmi else None
        for count, which, node, cpus, environment in places:
            request = templates[which]
            changed = {**request.environment, **environment} if environment else request.environment
            template = msgspec.structs.replace(request, node=node, cpus=cpus, environment=changed, group=number)
            template.streams = template.streams or [Output(), Output(), Output("tee")]
            for _ in range(count):
                self.members.append(Member(len(self.members), template))
        self._descriptors = list(map(os.dup, descriptors))

    # ---- starting

    @serves_each(groups.StartGroup)
    async def start(self) -> list[int]:
        if self.live:
            raise RuntimeError("the group is running already")
        self._ended, self.failure, self._failed_codes, self._culprit = [], "", [], None
        self._started, self.ending, self._aborter = True, False, None
        self._by_puid, self._early = {}, {}
        self.live, self.words[0] = len(self.members), 1
        for member in self.members:
            member.restarts = 0
        if self.settings.walltime is not None:
            self._later(self._end_in_time(self.settings.walltime))
        try:
            await self.start_members(self.members, self._jobs.open(self.members) if self._jobs is not None else None)
        except Exception:  # none was started, so clients must not wait for their end
            for member in self.members:
                member.alive = False
            self._started = False
            self._all_ended()
            raise
        return [member.puid for member in self.members]

    def extend(self, templates: list[Spawn]) -> list[Member]:
        members = [Member(len(self.members) + i, template) for i, template in enumerate(templates)]
        self.members += members
        self.live += len(members)
        return members

    async def start_members(self, members: list[Member], job: Job | None = None) -> None:
        """Start members, by one request for each node; with a job as its ranks."""
        by_node: dict[int, list[int]] = {}
        for position, member in enumerate(members):
            member.code, member.alive, member.puid, member.signals = None, True, 0, []
            by_node.setdefault(member.template.node, []).append(position)
        starts = []
        for node, positions in by_node.items():
            part = self._jobs.part(job, node, positions) if self._jobs is not None and job is not None else None
            starts.append((node, [members[position] for position in positions], part))
        requests = [self._requests(several) for _, several, _ in starts]  # first: there may not be memory for all
        if self.home.links is None:
            ((node, several, part),) = starts
            await self._start_on(node, several, *requests[0], part)
            return
        async with asyncio.TaskGroup() as tasks:
            for (node, several, part), request in zip(starts, requests, strict=True):
                tasks.create_task(self._start_on(node, several, *request, part))

    def _requests(self, members: list[Member]) -> tuple[list[Spawn], list[Instance]]:
        """Return the templates of members, each once, and their instances."""
        templates: list[Spawn] = []
        instances = []
        for member in members:
            if not templates or templates[-1] is not member.template:
                templates.append(member.template)
            name = f"{self.name}-{member.rank}"
            instances.append(Instance(len(templates) - 1, name, member.template.cpus, streams=member.connect()))
        return templates, instances

    async def _start_on(
        self, node: int, members: list[Member], templates: list[Spawn], instances: list[Instance], part: Part | None
    ) -> None:
        try:
            if node != self.home.node:
                kept = self.home.streams.keep(self._descriptors, node, len(members))
                started: Sequence[tuple[int, object]] = await self.home.start_on(node, templates, instances, kept, part)
            else:
                if self.home.links is not None:
                    await self.home.announce_all(node, templates, instances)
                if part is not None:
                    await self.home.jobs.serve(part)
                started = self.home.start_here(templates, instances, self._descriptors, part)
        except (OSError, MemoryError, RuntimeError, RemoteError, NodeLostError) as error:
            if self.home.links is None and part is None:
                raise
            self._not_started(members, error)
            return
        for member, (puid, _) in zip(members, started, strict=True):
            member.puid = puid
            self._by_puid[puid] = member
            signals, member.signals = member.signals, []
            for number in signals:
                self._kill(member, number)
        for puid, _ in started if self._early else ():
            for event in self._early.pop(puid, ()):
                self.on_event(event)

    def _not_started(self, members: list[Member], error: Exception) -> None:
        if self._jobs is not None:
            self._jobs.give_up(str(error))
        for member in members:
            if isinstance(error, NodeLostError):
                self._lost(member, str(error))
            else:
                self._end(member, 127, f"{self._name(member)} could not be started: {error}")

    # ---- requests

    @serves_each(groups.SignalGroup)
    def signal(self, which: int) -> None:
        """Send a signal to every live member. Raises RuntimeError if it was not started."""
        if not self._started:
            raise RuntimeError("the group was not started")
        if which in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            self.ending = True
        self._signal_all(which)

    @serves_each(groups.StopGroup)
    def stop(self, patience: float) -> None:
        """Send SIGINT, SIGTERM and SIGKILL to the members, with `patience` seconds between the steps."""
        self.ending = True
        self._later(self._escalate([signal.SIGINT, signal.SIGTERM, signal.SIGKILL], patience))

    @serves_each(groups.StopRestart)
    def stop_restart(self) -> None:
        self.restart = False

    def creator_ended(self, killed: bool) -> None:
        """End the members: with SIGKILL if the creator was killed, else with SIGTERM first."""
        self.restart, self.ending = False, True
        self._later(self._escalate([signal.SIGKILL] if killed else [signal.SIGTERM, signal.SIGKILL], _KILL_DELAY_S))

    @serves_each(groups.GroupStatus)
    def status(self) -> groups.Status:
        live = [member.puid for member in self.members if member.alive and member.puid]
        return groups.Status(live, self._ended, self.failure, self._failed_codes)

    @serves_each(groups.MemberStream)
    def stream(self, puid: int, stream: int) -> Name | None:
        """Return the name of the channel of a member's standard stream, if that is a PIPE, else None."""
        member = self._by_puid.get(puid)
        connection = member.connections.get(stream) if member is not None else None
        if connection is None:
            return None
        channel = connection._out() if stream == 0 else connection._in()
        return channel._name()

    def end_input(self, puid: int) -> None:
        """Close our end of a member's standard input, which is open for clients that request it."""
        member = self._by_puid.get(puid)
        if member is not None and 0 in member.connections:
            member.connections.pop(0).close()

    def close(self) -> None:
        self._closed, self.ending, self.restart = True, True, False
        self._signal_all(signal.SIGKILL)
        self._cancel_timers()
        if self._jobs is not None:
            self._jobs.close()
        for member in self.members:
            member.disconnect()
        for fd in self._descriptors:
            os.close(fd)
        self.words._destroy()

    # ---- events

    def on_event(self, event: MemberEvent) -> None:
        member, code = self._by_puid.get(event.puid), event.code
        if member is None:
            # It ended before the reply arrived that assigns it to a member.
            self._early.setdefault(event.puid, []).append(event)
        elif not member.alive:
            return
        elif event.failed:
            what = f"{self._name(member)} could not be started: {event.text}{what_to_raise(event.error)}"
            if self.restart and may_pass(event.error):
                self._end(member, code, what)
            else:
                self._note_failure(member, what, code)
                self._note_end(member, code)
        elif code == 0:
            self._end(member, 0, "")
        else:
            tail = f"; it last wrote:\n{event.text}" if event.text else ""
            self._end(member, code, f"{self._name(member)} ended with {how_ended(code)}{tail}")

    def node_lost(self, node: int, reason: str) -> None:
        for member in self.members:
            if member.alive and member.template.node == node and member.puid:
                self._lost(member, reason)

    def _lost(self, member: Member, reason: str) -> None:
        self._end(member, -signal.SIGKILL, f"{self._name(member)} is lost: {reason}")

    def job_failed(self, member: Member, what: str, code: int, at_once: bool) -> None:
        """Handle the failure of a rank: its MPI job cannot continue, even if failures are to be ignored."""
        if self.ending:
            return
        if what:
            if self._culprit is member:
                self.failure = ""  # its end was reported before its message
            self._note_failure(member, f"{self._name(member)} {what}", code)
        if at_once and not follows_another(self.settings.pmi, code):
            self.ending = True
            self._aborter = None if self.settings.pmi == PMIBackend.LAUNCHER else member
            self._signal_all(signal.SIGKILL)
        elif self.settings.ignore_error_on_exit or len(self.members) == 1:
            self._later(self._end_the_others())

    def _name(self, member: Member) -> str:
        return f"rank {member.rank} (puid {member.puid}) on {self.home.host(member.template.node)}"

    def _end(self, member: Member, code: int, what: str) -> None:
        """Restart a member that has ended; or note that, with `what` it did if the code is not 0."""
        if self.restart and not self.ending:
            member.code, member.alive = code, False
            self._ended.append((member.puid, code))
            self._later(self._start_again(member), self._restarts)
            return
        if (
            self._aborter not in (None, member)
            and code not in (0, -signal.SIGKILL)
            and not follows_another(self.settings.pmi, code)
        ):
            # A rank often aborts because another one has ended, which is reported slightly later.
            self._aborter, self.failure, self._failed_codes = None, what, [code]
        elif code != 0 and not self.ending:
            self._note_failure(member, what, code)
        self._note_end(member, code)

    async def _start_again(self, member: Member) -> None:
        pause = _RESTART_PAUSES[min(member.restarts, len(_RESTART_PAUSES) - 1)]
        member.restarts += 1
        await asyncio.sleep(pause)
        if self._closed:
            return
        if not self.restart or self.ending:
            self._leave()
            return
        links = self.home.links
        if links is not None and member.template.node in links.lost:
            node = choose(run_nodes(), member.rank, Policy.Distribution.DEFAULT)
            member.template = msgspec.structs.replace(member.template, node=node.index, cpus=[])
        try:
            await self.start_members([member])
        except (OSError, MemoryError) as error:
            self._not_started([member], error)

    def _note_failure(self, member: Member, what: str, code: int) -> None:
        self._failed_codes.append(code)
        if self.failure and not self._followed:
            return
        first = not self.failure
        self.failure, self._culprit = what, member
        self._followed = follows_another(self.settings.pmi, code)
        if first and not self.settings.ignore_error_on_exit and len(self.members) > 1:
            self._later(self._end_the_others())

    def _note_end(self, member: Member, code: int) -> None:
        member.code, member.alive = code, False
        self._ended.append((member.puid, code))
        self._leave()

    def _leave(self) -> None:
        self.live -= 1
        if not self.live and not self._closed:
            self._all_ended()

    def _all_ended(self) -> None:
        self.live, self.words[0] = 0, 0
        self._cancel_timers()
        for job in self._jobs.close() if self._jobs is not None else ():
            own_end = any(code >= 0 for _, code in job.missing)
            library = self.settings.mpi_library
            if library and own_end and len(job.placement) > 1 and len(job.missing) == len(job.placement):
                log.warning(
                    "none of the %d ranks of %s requested its rank in the job: if it called MPI_Init, each was rank "
                    "0 of 1, as its MPI library (%s) does not support %s; choose another one with pmi=…",
                    len(job.placement),
                    self.name,
                    library,
                    self.settings.pmi,
                )

    # ---- ending

    def _later(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]] | None = None) -> None:
        tasks = self._timers if tasks is None else tasks
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _cancel_timers(self) -> None:
        for task in list(self._timers):
            task.cancel()

    async def _end_in_time(self, walltime: float) -> None:
        await asyncio.sleep(walltime)
        if self.live:  # also those that are about to be restarted
            log.warning("%s reached its walltime of %s s; its %d processes are ended", self.name, walltime, self.live)
            self.ending = True
            self._signal_all(signal.SIGKILL)

    async def _end_the_others(self) -> None:
        # They have some time to end by themselves: the first cause is known already.
        await asyncio.sleep(_FOR_OWN_END)
        self.ending = True
        await self._escalate([signal.SIGTERM, signal.SIGKILL], _KILL_DELAY_S)

    async def _escalate(self, steps: list[Signals], patience: float) -> None:
        for step in steps:
            if self.live:
                self._signal_all(step)
                await asyncio.sleep(patience)

    def _signal_all(self, which: int) -> None:
        if self.ending and self._jobs is not None:
            self._jobs.withdraw()
        for member in self.members:
            if member.alive:
                self._kill(member, which)

    def _kill(self, member: Member, number: int) -> None:
        """Send a member a signal; if it is being started, it gets the signal afterwards."""
        if not member.puid:
            member.signals.append(number)
        elif node_of_puid(member.puid) != self.home.node and self.home.links is not None:
            self.home.links.forward(node_of_puid(member.puid), SignalProcess(member.puid, number))
        else:
            self.home.registry.signal(member.puid, number)


class GroupJobs:
    """The MPI jobs of a group: at first one of all members, and another for each MPI_Comm_spawn."""

    def __init__(self, group: Group) -> None:
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
                templates.append(msgspec.structs.replace(template, node=node.index))
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


class Groups:
    """All groups that were created on this node; their members may be on others."""

    def __init__(self, home: Processes) -> None:
        self._home = home
        self.present: dict[int, Group] = {}  # those that were not closed, by number
        self._last = 0

    @serves_for(groups.CreateGroup)
    def _create(
        self, caller: Caller, settings: groups.GroupSettings, templates: list[Spawn], places: list[groups.Places]
    ) -> groups.MadeGroup:
        self._last += 1
        number = (self._home.node << PUID_NODE_SHIFT) + self._last
        group = self.present[number] = Group(number, settings, templates, places, caller.descriptors, self._home)
        return groups.MadeGroup(number, group.words._name())

    def find(self, number: int) -> Group:
        """Return a group. Raises LookupError."""
        if number not in self.present:
            raise LookupError("the group was closed")
        return self.present[number]

    @serves(groups.IsGroupEnding)
    def _is_ending(self, number: int) -> bool:
        return number not in self.present or self.present[number].ending

    @serves(groups.EndInput)
    def _end_input(self, number: int, puid: int) -> None:
        if number in self.present:
            self.present[number].end_input(puid)

    @serves(groups.CloseGroup)
    def close(self, number: int) -> None:
        group = self.present.pop(number, None)
        if group is not None:
            group.close()

    def close_all(self) -> None:
        for number in list(self.present):
            self.close(number)

    def on_event(self, event: MemberEvent) -> None:
        group = self.present.get(event.group)
        if group is not None:
            group.on_event(event)

    def node_lost(self, node: int, reason: str) -> None:
        for group in list(self.present.values()):
            group.node_lost(node, reason)
