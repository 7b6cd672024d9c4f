"""The services of a node's agent, for the processes of its node and the agents of others."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from dragon import _core
from dragon.agent.groups import Group, Groups
from dragon.agent.mpi.jobs import Jobs
from dragon.agent.objects import RemoteObjects
from dragon.agent.output.streams import Streams, ended
from dragon.agent.processes.parents import TRACKER_ENDS_WITHIN_S, is_ready, start_tracker
from dragon.agent.processes.registry import Event, Exited, Failed, Registry, Started, Stream
from dragon.agent.processes.starting import Processes, Spawner
from dragon.agent.shards.shards import Shards
from dragon.infrastructure.facts import PUID_NODE_SHIFT
from dragon.infrastructure.system import what_to_raise
from dragon.runtime.folder import process_start_time
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol import objects
from dragon.runtime.protocol import run as requests
from dragon.runtime.protocol.agents import MemberEvent, MembersEnded
from dragon.runtime.protocol.request import Caller
from dragon.runtime.rpc import Table, serves, serves_for
from dragon.runtime.run import Run

if TYPE_CHECKING:
    from dragon.agent.wire.links import Links

log = runtime_log("agent")

_BATCH_S = 0.05  # seconds in which notices of ends are gathered while processes are started
_RESTART_DELAY_S = 1.0  # seconds between two attempts to start one


class _Idle(NamedTuple):
    """A tracker that is not started: its pipe, its stderr, and the process that it is for."""

    reading: int
    errors: int
    process: int


class Trackers:
    """The trackers of this node. A tracker is identified by the inode of its pipe."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._idle: dict[int, _Idle] = {}
        self._running: dict[int, tuple[int, asyncio.Task[None]]] = {}  # by process id: the process it is for; its end

    @property
    def processes(self) -> set[int]:
        """The process ids of the trackers that were started."""
        return set(self._running)

    @serves_for(requests.KeepTracker)
    def keep(self, caller: Caller, process: int) -> None:
        """Start a tracker for a process once its pipe, the first descriptor, has something to read."""
        reading, errors = map(os.dup, caller.descriptors)
        pipe = os.fstat(reading).st_ino
        self._idle[pipe] = _Idle(reading, errors, process)
        self.loop.add_reader(reading, self._look, pipe)

    @serves(requests.GiveTrackerBack)
    def give_back(self, pipe: int) -> bool:
        """Remove a tracker that has got no message. Returns False if it has, or is unknown."""
        idle = self._idle.get(pipe)
        if idle is None or is_ready(idle.reading, 0):
            return False
        self._forget(pipe)
        return True

    def _forget(self, pipe: int) -> None:
        idle = self._idle.pop(pipe)
        self.loop.remove_reader(idle.reading)
        os.close(idle.reading)
        os.close(idle.errors)

    def _look(self, pipe: int) -> None:
        """Start a tracker that has got a message; remove it if all writers of its pipe have ended."""
        idle = self._idle.get(pipe)
        if idle is None:
            return
        if is_ready(idle.reading, 0) and not self._start(idle):
            self.loop.remove_reader(idle.reading)
            self.loop.call_later(_RESTART_DELAY_S, self._look, pipe)
        else:
            self._forget(pipe)

    def _start(self, idle: _Idle) -> bool:
        try:
            tracker = start_tracker(idle.reading, idle.errors)
        except OSError as error:
            limit = what_to_raise(error.errno or 0)
            log.warning("Python's tracker of shared memory does not start: %s%s", error, limit)
            return False
        self._running[tracker] = idle.process, self.loop.create_task(self._await(tracker))
        return True

    async def _await(self, tracker: int) -> None:
        await ended(tracker)
        os.waitpid(tracker, 0)
        del self._running[tracker]

    async def finish(self) -> None:
        """Wait, at the end of the run, until trackers whose processes have ended have removed their files."""
        for pipe in list(self._idle):
            self._look(pipe)
        ends = [ended for process, ended in self._running.values() if process_start_time(process) is None]
        if ends:
            await asyncio.wait(ends, timeout=TRACKER_ENDS_WITHIN_S)


_FIRST_OBJECT = 2**63  # above all numbers of processes and default pools


class NamedObjects:
    """Channels, pools and groups of dragon.globalservices, by number and name. Node 0 keeps those of all nodes."""

    def __init__(self) -> None:
        self._known: dict[str, dict[int, objects.NamedObject]] = {}

    @serves(objects.CreateNamedObject)
    def create(self, kind: str, name: str, at: int, serialized: bytes, members: list[list[int]]) -> objects.NamedObject:
        """Register an object. For an empty name a unique one is chosen. Raises ValueError if the name is taken."""
        known = self._known.setdefault(kind, {})
        if name and any(one.name == name and one.alive for one in known.values()):
            raise ValueError(f"a {kind} {name!r} exists already in this run")
        number = _FIRST_OBJECT + len(known)
        name = name or f"dragon_{kind}_{number}"
        known[number] = objects.NamedObject(kind, number, name, at, serialized, members=members)
        return known[number]

    @serves(objects.FindNamedObject)
    def find(self, kind: str, key: int | str) -> objects.NamedObject:
        """Return the object of that number, maybe destroyed, or the live one of that name. Raises LookupError."""
        for one in self._known.get(kind, {}).values():
            if key == one.number or (key == one.name and one.alive):
                return one
        raise LookupError(f"the run has no {kind} {key!r}")

    @serves(objects.ListNamedObjects)
    def numbers(self, kind: str) -> list[int]:
        return [one.number for one in self._known.get(kind, {}).values() if one.alive]

    @serves(objects.ChangeMembers)
    def _change(self, kind: str, number: int, added: list[list[int]], removed: list[int]) -> objects.NamedObject:
        group = self.find(kind, number)
        group.members = [[puid for puid in several if puid not in removed] for several in (*group.members, *added)]
        return group

    @serves(objects.ForgetNamedObject)
    def forget(self, kind: str, number: int) -> None:
        self._known[kind][number].alive = False


_NOT_STARTED = 127  # the exit code that is reported to a job for a member that could not be started


class Services:
    """The services of one node. `links` is None in a run of one node, which ends once `over` is done."""

    def __init__(
        self, run: Run, zygote: int, spawner: Spawner, links: Links | None, over: asyncio.Future[None]
    ) -> None:
        self.run = run
        self.spawner = spawner
        self.links = links
        self.over = over
        self.writing: asyncio.Future[None] | None = None  # the last checkpoints, once processes were told to wait
        self.loop = asyncio.get_running_loop()
        self.host_name = links.host_name(run.node) if links is not None else socket.gethostname()
        self.streams = Streams(run.label, run.node, self.host_name)
        self.registry = Registry(run.node, zygote)
        self.table = Table()  # of the requests that this node executes itself
        self.jobs = Jobs(run.node, links, self.table)
        self.processes = Processes(run, spawner, self.registry, self.jobs, links, self.streams)
        self.groups = Groups(self.processes)
        self._untold: dict[int, list[MemberEvent]] = {}  # ends here, by the node that follows the group or process
        self.shards = Shards(run, links)
        self.trackers = Trackers()
        self.remote = RemoteObjects(links) if links is not None else None
        # Of processes that have ended, and whose end is told once their messages to other nodes are there.
        self._ending: dict[int, asyncio.Future[Any]] = {}  # by puid
        # Its desk is the channel in which processes put operations on objects of other nodes, and what event loops wait
        # for: in a run of one node there is a wire only for these.
        self.wire = links.wire if links is not None else None
        if self.wire is not None:
            self.wire.open_desk()
        self.table.serve(self, self.groups, NamedObjects(), self.processes, self.registry, self.trackers, self.streams)
        self.table.serve(self.shards, self.shards.snapshots, *filter(None, [self.remote, links]))
        self.table.serve_each(Group, self.groups.find)

    @serves(MembersEnded)
    def _members_ended(self, events: list[MemberEvent]) -> None:
        for event in events:
            if event.record is None:
                self.groups.on_event(event)
            else:
                self.processes.ended(event.record, event.code)

    @serves(requests.ListProcesses)
    async def _list_processes(self) -> list[requests.Known]:
        await self._catch_up(None)
        return self.registry.all()

    @serves(requests.FindProcess)
    async def _find_process(self, puid: int) -> requests.Known:
        await self._catch_up(puid, self.spawner.reported)
        return self.registry.query(puid)

    @serves(requests.FindNamedProcesses)
    async def _find_named_processes(self, name: str) -> list[requests.Known]:
        await self._catch_up(None)
        return self.registry.named(name)

    @serves(requests.KillProcess)
    async def _kill_process(self, puid: int, number: int = signal.SIGKILL) -> None:
        await self._catch_up(puid)
        self.registry.kill(puid, number)

    @serves(requests.AwaitEnd)
    async def _await_end(self, puid: int) -> int:
        await self._catch_up(puid)
        return await self.registry.end_of(puid)

    @serves(requests.EndStartedBy)
    async def _end_started_by(self, creator: int, killed: bool) -> None:
        await self._catch_up(None)
        self.registry.end_started_by(creator, killed)

    async def _catch_up(
        self, puid: int | None, wait: Callable[[int | None], Coroutine[Any, Any, None]] | None = None
    ) -> None:
        """Wait until all events of the zygote up to now are handled, and the end of that process, or of all, is told;
        see Spawner.catch_up()."""
        await (wait or self.spawner.catch_up)(puid)
        ending = self._ending and [each for other, each in self._ending.items() if puid in (other, None)]
        if ending:
            await asyncio.wait(ending)

    def on_event(self, event: Event, descriptors: list[int]) -> None:
        """Handle an event of the zygote: a process started, failed or ended, or a stream was opened."""
        match event:
            case Stream():
                self.streams.add(event.puid, event.name, event.number, event.channel, event.group, descriptors)
            case Started():
                self.registry.started(event)
            case Failed():
                self.registry.failed(event)
                self._member_ended(event)
            case Exited():
                self._on_exit(event)

    def _on_exit(self, event: Exited) -> None:
        pid, under_way = self.registry.query(event.puid).pid, None
        if self.remote is not None:
            under_way = self.remote.left(pid)
            if self.shards.serving is not None and (self.run.node, pid) in self.shards.serving.inboxes:
                self.shards.serving.client_left(self.run.node, pid)
        elif self.wire is not None:
            self.wire.left(pid)
        if self.wire is not None:
            self.wire.look_at_all()  # it may not have told what it changed
        if not event.leaves:
            killed = event.code == -signal.SIGKILL
            for group in self.groups.present.values():
                if group.settings.creator == event.puid:
                    group.creator_ended(killed)
            if event.puid in self.processes.elsewhere:
                self.processes.creator_ended(event.puid, killed)
        if under_way is not None:
            # Who hears of the end finds what the process has put into queues of other nodes.
            ending = asyncio.ensure_future(asyncio.wait([under_way]))
            self._ending[event.puid] = ending
            ending.add_done_callback(lambda _: self._ended(event, ending))
        else:
            self._ended(event)

    def _ended(self, event: Exited, ending: asyncio.Future[Any] | None = None) -> None:
        if ending is not None:
            del self._ending[event.puid]
            if ending.cancelled():
                return  # the run has ended
        for number in (1, 2):
            if (reader := self.streams.readers.get((event.puid, number))) is not None and reader.tails:
                reader.catch_up()
        self.registry.exited(event)
        self._member_ended(event)

    def _member_ended(self, event: Exited | Failed) -> None:
        """Notify a job, and the group of the process; or its creator on another node."""
        puid, group = event.puid, event.group
        if not group:
            node, record = self.processes.followers.pop(puid, (0, None))
            if record is not None and isinstance(event, Exited):
                self._tell(node, MemberEvent(puid, 0, "", event.code, record=record))
            return
        if self.jobs.ranks:
            self.jobs.ended(puid, event.code if isinstance(event, Exited) else _NOT_STARTED)
        if isinstance(event, Exited):
            told = MemberEvent(puid, group, self.streams.errors.pop(puid), event.code)
        else:
            told = MemberEvent(puid, group, event.text, failed=True, error=event.error)
        home = group >> PUID_NODE_SHIFT  # the node that follows it
        if home == self.run.node:
            self.groups.on_event(told)
        else:
            self._tell(home, told)

    def _tell(self, home: int, event: MemberEvent) -> None:
        """Tell a node of an event, in order. Each message wakes another agent, which takes as long as many starts. So
        while this node is starting processes, successful ends of members are sent together."""
        untold = self._untold.setdefault(home, [])
        untold.append(event)
        if event.failed or event.code != 0 or event.record is not None or not self.spawner.unanswered:
            self._tell_all(home)
        elif len(untold) == 1:
            self.loop.call_later(_BATCH_S, self._tell_all, home)

    def _tell_all(self, home: int) -> None:
        events = self._untold.pop(home, [])
        if events and self.links is not None and home not in self.links.lost:
            self.links.forward(home, MembersEnded(events))

    @serves(objects.OpenDesk)
    def _open_desk(self) -> None:
        if self.wire is None:
            self.wire = _core.Wire(0)
            self.wire.open_desk()

    def look_at_all(self) -> None:
        if self.wire is not None:
            self.wire.look_at_all()

    def end(self) -> None:
        """End the run; may be called again."""
        if not self.over.done():
            self.over.set_result(None)
        elif self.writing is not None:
            self.writing.cancel()
