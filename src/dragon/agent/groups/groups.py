"""Process groups: started together, restarted or ended together, and followed through shared words.

A group is Idle, then Running, then Idle again when its last member has ended, or Error if a member failed. The first
failure is the one that is reported; unless failures are to be ignored, the other members are then ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from signal import Signals
from typing import Any

import msgspec

from dragon.agent.groups.group import Group, Member
from dragon.agent.groups.group_jobs import GroupJobs, MemberProcesses, Requests
from dragon.agent.mpi.job import Job, follows_another
from dragon.agent.mpi.jobs import Jobs
from dragon.agent.objects.peers import Peers
from dragon.agent.output.streams import Streams
from dragon.agent.processes.registry import Registry
from dragon.agent.processes.starting import Processes
from dragon.agent.wire.session import RemoteError
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.facts import PUID_NODE_SHIFT, PMIBackend
from dragon.infrastructure.messages import Name, Spawn
from dragon.infrastructure.system import may_pass, what_to_raise
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol import groups
from dragon.runtime.protocol.agents import MemberEvent
from dragon.runtime.protocol.jobs import Part
from dragon.runtime.protocol.request import Handler
from dragon.signals import how_ended

log = runtime_log("groups")

_KILL_DELAY_S = 5.0
_RESTART_PAUSES = (0.0, 0.0, 0.1, 0.5, 1.0)  # seconds before each restart of a member; the last is repeated
_FOR_OWN_END = 1.0  # seconds between a member's failure and the end of the others


class Groups:
    """All groups that were created on this node; their members may be on others."""

    def __init__(
        self,
        node: int,
        registry: Registry,
        processes: Processes,
        jobs: Jobs,
        streams: Streams,
        host_name: str,
        peers: Peers | None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._node = node
        self._processes = MemberProcesses(node, registry, processes, streams, peers)
        self._host_name = host_name
        self._peers = peers
        self._groups: dict[int, Group] = {}
        self._last = 0
        self._jobs = GroupJobs(node, jobs, self._job_failed, self._extend, self._start_ranks, self._host)

    @staticmethod
    def home_of(number: int) -> int:
        """Return the node that follows the group of that number."""
        return number >> PUID_NODE_SHIFT

    def all(self) -> list[Group]:
        """Return every group that was not closed."""
        return list(self._groups.values())

    # ---- requests

    def handlers(self) -> list[Handler]:
        """Return the handlers of the requests that this object serves."""
        return [
            groups.CreateGroup.served_for(lambda r, caller: self.create(r, caller.descriptors)),
            groups.StartGroup.served_by(lambda r: self.start(r.number)),
            groups.SignalGroup.served_by(lambda r: self.signal(r.number, r.which)),
            groups.StopGroup.served_by(lambda r: self.stop(r.number, r.patience)),
            groups.StopRestart.served_by(lambda r: self.stop_restart(r.number)),
            groups.IsGroupEnding.served_by(lambda r: self.is_ending(r.number)),
            groups.GroupStatus.served_by(lambda r: self.status(r.number)),
            groups.MemberStream.served_by(lambda r: self.stream(r.number, r.puid, r.stream)),
            groups.EndInput.served_by(lambda r: self.end_input(r.number, r.puid)),
            groups.CloseGroup.served_by(lambda r: self.close(r.number)),
        ]

    def create(self, wanted: groups.CreateGroup, descriptors: Sequence[int]) -> groups.MadeGroup:
        """Create a group; `descriptors` are the creator's streams."""
        self._last += 1
        group = Group((self._node << PUID_NODE_SHIFT) + self._last, wanted.settings, descriptors)
        for count, which, node, cpus, environment in wanted.places:
            request = wanted.templates[which]
            template = msgspec.structs.replace(
                request,
                node=node,
                cpus=cpus,
                environment={**request.environment, **environment} if environment else request.environment,
                group=group.number,
            )
            group.members += [Member(len(group.members) + i, template) for i in range(count)]
        self._groups[group.number] = group
        return groups.MadeGroup(group.number, group.words._name())

    def _group(self, number: int) -> Group:
        group = self._groups.get(number)
        if group is None:
            raise LookupError("the group was closed")
        return group

    def start(self, number: int) -> asyncio.Future[list[int]]:
        """Start all members. Returns a future of their puids in order."""
        group = self._group(number)
        if group.live:
            raise RuntimeError("the group is running already")
        group.ended, group.failure, group.failed_codes, group.culprit = [], "", [], None
        group.started, group.ending, group.aborter = True, False, None
        group.by_puid, group.early = {}, {}
        group.live = len(group.members)
        for member in group.members:
            member.restarts = 0
        if group.walltime is not None:
            group.timers.append(self.loop.call_later(group.walltime, self._walltime, group))
        return asyncio.ensure_future(self._start(group))

    async def _start(self, group: Group) -> list[int]:
        job = self._jobs.open(group, group.members) if group.pmi else None
        try:
            starts = self._start_members(group, group.members, job)
        except BaseException:  # none was started, so clients must not wait for their end
            for member in group.members:
                member.alive = False
            group.started, group.live = False, 0
            group.cancel_timers()
            raise
        await asyncio.gather(*starts)
        return [member.puid for member in group.members]

    async def _start_ranks(self, group: Group, members: list[Member], job: Job) -> None:
        await asyncio.gather(*self._start_members(group, members, job))

    def _extend(self, group: Group, templates: list[Spawn]) -> list[Member]:
        """Add members to a running group."""
        members = [Member(len(group.members) + i, template) for i, template in enumerate(templates)]
        group.members += members
        group.live += len(members)
        return members

    def _start_members(self, group: Group, members: list[Member], job: Job | None = None) -> list[asyncio.Future[Any]]:
        """Start members on this node at once. Returns futures of those on other nodes (one per node), and of ranks."""
        by_node: dict[int, list[Member]] = {}
        for member in members:
            member.code = None
            member.alive = True
            member.puid, member.signals = 0, []
            by_node.setdefault(member.template.node, []).append(member)
        waits: list[asyncio.Future[Any]] = []
        asked = [(node, several, group.requests(several)) for node, several in by_node.items()]
        for node, several, requests in asked:
            part = None
            if job is not None:
                place = {id(member): rank for rank, member in enumerate(members)}
                part = self._jobs.part(job, node, [place[id(member)] for member in several])
            if self._peers is None and part is None:
                self._processes.start_here(group, several, requests)
            else:
                waits.append(asyncio.ensure_future(self._start_on(node, group, several, requests, part)))
        return waits

    async def _start_on(
        self, node: int, group: Group, members: list[Member], requests: Requests, part: Part | None
    ) -> None:
        try:
            await self._processes.start_on(node, group, members, requests, part)
            for member in members:
                for event in group.early.pop(member.puid, ()):
                    self.on_event(event)
        except NodeLostError as error:
            self._jobs.give_up(group, str(error))
            for member in members:
                self._lost(group, member, str(error))
        except (OSError, MemoryError, RuntimeError, RemoteError) as error:
            self._jobs.give_up(group, str(error))
            for member in members:
                self._end_member(group, member, 127, f"{self._name(member)} could not be started: {error}")

    def signal(self, number: int, which: int) -> None:
        """Send a signal to every live member. Raises RuntimeError if the group was not started."""
        group = self._group(number)
        if not group.started:
            raise RuntimeError("the group was not started")
        if which in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
            group.ending = True
        self._signal_all(group, which)

    def _signal_all(self, group: Group, which: int) -> None:
        if group.ending:
            self._jobs.withdraw(group)
        for member in group.members:
            if member.alive:
                self._processes.kill(member, which)

    def stop(self, number: int, patience: float) -> None:
        """Send SIGINT, SIGTERM and SIGKILL to the members, with `patience` seconds between the steps."""
        group = self._group(number)
        group.ending = True
        self._escalate(group, [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], patience)

    def _escalate(self, group: Group, steps: list[Signals], patience: float) -> None:
        if not group.live or not steps:
            return
        self._signal_all(group, steps[0])
        group.timers.append(self.loop.call_later(patience, self._escalate, group, steps[1:], patience))

    def stop_restart(self, number: int) -> None:
        """Stop restarting members that end."""
        self._group(number).restart = False

    def is_ending(self, number: int) -> bool:
        """Return whether the members of the group are being ended, or the group was closed."""
        group = self._groups.get(number)
        return group is None or group.ending

    def status(self, number: int) -> groups.Status:
        """Return the status of a group for a client."""
        group = self._group(number)
        live = [m.puid for m in group.members if m.alive and m.puid]
        return groups.Status(live, group.ended, group.failure, group.failed_codes)

    def stream(self, number: int, puid: int, stream: int) -> Name | None:
        """Return the name of the channel of a member's standard stream, if that is a PIPE, else None."""
        member = self._group(number).by_puid.get(puid)
        connection = member.connections.get(stream) if member is not None else None
        if connection is None:
            return None
        channel = connection._out() if stream == 0 else connection._in()
        return channel._name()

    def end_input(self, number: int, puid: int) -> None:
        """Close the agent's end of a member's standard input, which is open for clients that request it."""
        group = self._groups.get(number)
        if group is not None and puid in group.by_puid:
            group.by_puid[puid].close_stream(0)

    def close(self, number: int) -> None:
        """Remove the group, and kill its live members."""
        group = self._groups.pop(number, None)
        if group is None:
            return
        group.cancel_timers()
        group.ending = True
        group.restart = False
        self._signal_all(group, signal.SIGKILL)
        self._jobs.close(group)
        for member in group.members:
            member.disconnect()
        for fd in group.descriptors:
            os.close(fd)
        group.words._destroy()

    def close_all(self) -> None:
        """Close all groups."""
        for number in list(self._groups):
            self.close(number)

    # ---- events

    def on_event(self, event: MemberEvent) -> None:
        """Handle the end of a member, or that it could not be started."""
        found = self._groups.get(event.group)
        member = found.by_puid.get(event.puid) if found else None
        if found is None:
            return
        if member is None:
            # It ended before the reply arrived that assigns it to a member.
            found.early.setdefault(event.puid, []).append(event)
        elif event.failed and member.alive:
            what = f"{self._name(member)} could not be started: {event.text}{what_to_raise(event.error)}"
            if found.restart and may_pass(event.error):
                self._end_member(found, member, event.code, what)
                return
            self._note_failure(found, member, what, event.code)
            self._ended(found, member, event.code)
        elif member.alive:
            self._exited(found, member, event.code, event.text)

    def creator_ended(self, puid: int, killed: bool) -> None:
        """End the groups of a process that has ended: with SIGKILL if it was killed, else with SIGTERM first."""
        for group in list(self._groups.values()):
            if group.creator == puid:
                group.restart, group.ending = False, True
                self._escalate(group, [signal.SIGKILL] if killed else [signal.SIGTERM, signal.SIGKILL], _KILL_DELAY_S)

    def node_lost(self, node: int, reason: str) -> None:
        """Handle the loss of the members on a node."""
        for group in list(self._groups.values()):
            for member in group.members:
                if member.alive and member.template.node == node and member.puid:
                    self._lost(group, member, reason)

    def _lost(self, group: Group, member: Member, reason: str) -> None:
        self._end_member(group, member, -signal.SIGKILL, f"{self._name(member)} is lost: {reason}")

    def _job_failed(self, group: Group, member: Member, what: str, code: int, at_once: bool) -> None:
        """Handle the failure of a rank: its MPI job cannot continue, even if failures are to be ignored."""
        if group.ending:
            return
        if what:
            if group.culprit is member:
                group.failure = ""  # its end was reported before its message
            self._note_failure(group, member, f"{self._name(member)} {what}", code)
        if at_once and not follows_another(group.pmi, code):
            group.ending = True
            group.aborter = None if group.pmi == PMIBackend.LAUNCHER else member
            self._signal_all(group, signal.SIGKILL)
        elif group.ignore_errors or len(group.members) == 1:
            group.timers.append(self.loop.call_later(_FOR_OWN_END, self._end_the_others, group))

    def _host(self, node: int) -> str:
        return self._peers.host(node) if self._peers is not None else self._host_name

    def _name(self, member: Member) -> str:
        return f"rank {member.rank} (puid {member.puid}) on {self._host(member.template.node)}"

    def _exited(self, group: Group, member: Member, code: int, tail: str) -> None:
        what = f"{self._name(member)} ended with {how_ended(code)}"
        self._end_member(group, member, code, what + (f"; it last wrote:\n{tail}" if tail else ""))

    def _end_member(self, group: Group, member: Member, code: int, what: str) -> None:
        if group.restart and not group.ending:
            member.code, member.alive = code, False
            group.ended.append((member.puid, code))
            pause = _RESTART_PAUSES[min(member.restarts, len(_RESTART_PAUSES) - 1)]
            member.restarts += 1
            self.loop.call_later(pause, self._start_again, group, member)
            return
        if (
            group.aborter not in (None, member)
            and code not in (0, -signal.SIGKILL)
            and not follows_another(group.pmi, code)
        ):
            # A rank often aborts because another one has ended, which is reported slightly later.
            group.aborter, group.failure, group.failed_codes = None, what, [code]
        elif code != 0 and not group.ending:
            self._note_failure(group, member, what, code)
        self._ended(group, member, code)

    def _start_again(self, group: Group, member: Member) -> None:
        if group.number in self._groups and group.restart and not group.ending:
            self._processes.move(member)
            try:
                self._start_members(group, [member])
            except (OSError, MemoryError) as error:
                self._end_member(group, member, 127, f"{self._name(member)} could not be started: {error}")
        elif member.code is not None:
            self._leave(group)

    def _note_failure(self, group: Group, member: Member, what: str, code: int) -> None:
        group.failed_codes.append(code)
        if group.failure and not group.failed_after_another:
            return
        first = not group.failure
        group.failure, group.culprit = what, member
        group.failed_after_another = follows_another(group.pmi, code)
        if first and not group.ignore_errors and len(group.members) > 1:
            # Give the others some time to end by themselves: the first cause is known already.
            group.timers.append(self.loop.call_later(_FOR_OWN_END, self._end_the_others, group))

    def _end_the_others(self, group: Group) -> None:
        group.ending = True
        self._escalate(group, [signal.SIGTERM, signal.SIGKILL], _KILL_DELAY_S)

    def _ended(self, group: Group, member: Member, code: int) -> None:
        member.code, member.alive = code, False
        group.ended.append((member.puid, code))
        self._leave(group)

    def _leave(self, group: Group) -> None:
        group.live -= 1
        if not group.live:
            group.cancel_timers()
            self._look_at_jobs(group)

    def _look_at_jobs(self, group: Group) -> None:
        for job in self._jobs.close(group):
            own_end = any(code >= 0 for _, code in job.missing)
            if group.library and own_end and len(job.placement) > 1 and len(job.missing) == len(job.placement):
                log.warning(
                    "none of the %d ranks of %s requested its rank in the job: if it called MPI_Init, each was rank "
                    "0 of 1, as its MPI library (%s) does not support %s; choose another one with pmi=…",
                    len(job.placement),
                    group.name,
                    group.library,
                    group.pmi,
                )

    def _walltime(self, group: Group) -> None:
        live = sum(m.alive for m in group.members)
        if live:
            log.warning("%s reached its walltime of %s s; its %d processes are ended", group.name, group.walltime, live)
            group.ending = True
            self._signal_all(group, signal.SIGKILL)
