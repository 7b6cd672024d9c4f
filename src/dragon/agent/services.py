"""The services of a node's agent, for the processes of its node and the agents of others."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

from dragon import _core
from dragon.agent.groups.group_jobs import Home
from dragon.agent.groups.groups import Groups
from dragon.agent.mpi.jobs import Jobs
from dragon.agent.objects.peers import Peers
from dragon.agent.objects.remote_objects import RemoteObjects
from dragon.agent.output.streams import Streams
from dragon.agent.processes.parents import TRACKER_ENDS_WITHIN_S, start_tracker
from dragon.agent.processes.registry import Event, Exited, Failed, Registry, Started, Stream
from dragon.agent.processes.starting import Processes, Spawner
from dragon.agent.shards.shards import Shards
from dragon.agent.wire.session import Table, then
from dragon.infrastructure.facts import PUID_NODE_SHIFT
from dragon.infrastructure.system import what_to_raise
from dragon.runtime.folder import process_start_time
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol import groups, objects
from dragon.runtime.protocol.agents import MemberEvent, MembersEnded
from dragon.runtime.protocol.processes import GiveTrackerBack, KeepTracker
from dragon.runtime.protocol.request import Handler
from dragon.runtime.run import Run

log = runtime_log("agent")

_BATCH_S = 0.05  # seconds in which notices of ends are gathered while processes are started
_RESTART_DELAY_S = 1.0  # seconds between two attempts to start one


class _Idle(NamedTuple):
    """A tracker that is not started: its pipe, its stderr, and the process that it is for."""

    reading: int
    errors: int
    process: int

    @property
    def is_told(self) -> bool:
        events = select.poll()
        events.register(self.reading, select.POLLIN)
        return any(event & select.POLLIN for _, event in events.poll(0))


class Trackers:
    """The trackers of this node. A tracker is identified by the inode of its pipe."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._idle: dict[int, _Idle] = {}
        self._running: dict[int, tuple[int, asyncio.Future[None]]] = {}  # by process id: the process it is for; its end

    @property
    def processes(self) -> set[int]:
        """The process ids of the trackers that were started."""
        return set(self._running)

    def handlers(self) -> list[Handler]:
        """Return the handlers of the requests that this object serves."""
        return [
            KeepTracker.served_for(lambda r, caller: self.keep(r.process, caller.descriptors)),
            GiveTrackerBack.served_by(lambda r: self.give_back(r.pipe)),
        ]

    def keep(self, process: int, descriptors: Sequence[int]) -> None:
        """Start a tracker for a process once its pipe, the first descriptor, has something to read."""
        reading, errors = map(os.dup, descriptors)
        pipe = os.fstat(reading).st_ino
        self._idle[pipe] = _Idle(reading, errors, process)
        self.loop.add_reader(reading, self._look, pipe)

    def give_back(self, pipe: int) -> bool:
        """Remove a tracker that has got no message. Returns False if it has, or is unknown."""
        idle = self._idle.get(pipe)
        if idle is None or idle.is_told:
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
        if idle.is_told and not self._start(idle):
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
        self._running[tracker] = (idle.process, self.loop.create_future())
        gone = _core.open_process(tracker)
        self.loop.add_reader(gone, self._on_end, tracker, gone)
        return True

    def _on_end(self, tracker: int, gone: int) -> None:
        self.loop.remove_reader(gone)
        os.close(gone)
        os.waitpid(tracker, 0)
        self._running.pop(tracker)[1].set_result(None)

    async def finish(self) -> None:
        """Wait, at the end of the run, until trackers whose processes have ended have removed their files."""
        for pipe in list(self._idle):
            self._look(pipe)
        ends = [ended for process, ended in self._running.values() if process_start_time(process) is None]
        if ends:
            await asyncio.wait(ends, timeout=TRACKER_ENDS_WITHIN_S)


class NamedGroups:
    """The named groups that were created on this node; their members may be on others."""

    def __init__(self, node: int) -> None:
        self._node = node
        self._last = 0
        self._known: dict[int, groups.NamedGroup] = {}

    def handlers(self) -> list[Handler]:
        """Return the handlers of the requests that this object serves."""
        return [
            groups.CreateNamedGroup.served_by(lambda r: self.create(r.name, r.sets)),
            groups.FindNamedGroup.served_by(lambda r: self.named(r.name)),
            groups.FindNumberedGroup.served_by(lambda r: self.numbered(r.number)),
            groups.ListNamedGroups.served_by(lambda r: list(self._known)),
            groups.AddMembers.served_by(lambda r: self.add(r.number, r.sets)),
            groups.RemoveMembers.served_by(lambda r: self.remove(r.number, r.members)),
            groups.ForgetNamedGroup.served_by(lambda r: self.forget(r.number)),
        ]

    def create(self, name: str, sets: list[list[int]]) -> groups.NamedGroup:
        """Create a group. For an empty name a unique one is chosen."""
        self._last += 1
        number = (self._node << PUID_NODE_SHIFT) + self._last
        self._known[number] = groups.NamedGroup(number, name or f"dragon_group_{number}", sets)
        return self._known[number]

    def named(self, name: str) -> groups.NamedGroup:
        """Return the group of that name. Raises LookupError."""
        for known in self._known.values():
            if known.name == name:
                return known
        raise LookupError(f"the run has no group {name!r}")

    def numbered(self, number: int) -> groups.NamedGroup:
        """Return the group of that number. Raises LookupError."""
        if number not in self._known:
            raise LookupError(f"the run has no group {number}")
        return self._known[number]

    def add(self, number: int, sets: list[list[int]]) -> None:
        """Add members. Raises LookupError."""
        self.numbered(number).sets.extend(sets)

    def remove(self, number: int, members: list[int]) -> None:
        """Remove members. Raises LookupError."""
        known = self.numbered(number)
        known.sets = [[puid for puid in members_of if puid not in members] for members_of in known.sets]

    def forget(self, number: int) -> None:
        """Remove a group; its members are not affected."""
        self._known.pop(number, None)


_FIRST_OBJECT = 2**63  # above all numbers of processes and default pools


class NamedObjects:
    """Channels and pools that programs create with dragon.globalservices, by number and name. Node 0 keeps those of all
    nodes."""

    def __init__(self) -> None:
        self._known: dict[str, dict[int, objects.NamedObject]] = {}

    def handlers(self) -> list[Handler]:
        """Return the handlers of the requests that this object serves."""
        return [
            objects.CreateNamedObject.served_by(lambda r: self.create(r.kind, r.name, r.at, r.serialized)),
            objects.FindNamedObject.served_by(lambda r: self.find(r.kind, r.key)),
            objects.ListNamedObjects.served_by(lambda r: self.numbers(r.kind)),
            objects.ForgetNamedObject.served_by(lambda r: self.forget(r.kind, r.number)),
        ]

    def create(self, kind: str, name: str, at: int, serialized: bytes) -> objects.NamedObject:
        """Register an object. For an empty name a unique one is chosen. Raises ValueError if the name is taken."""
        known = self._known.setdefault(kind, {})
        if name and any(one.name == name and one.alive for one in known.values()):
            raise ValueError(f"a {kind} {name!r} exists already in this run")
        number = _FIRST_OBJECT + len(known)
        known[number] = objects.NamedObject(kind, number, name or f"dragon_{kind}_{number}", at, serialized)
        return known[number]

    def find(self, kind: str, key: int | str) -> objects.NamedObject:
        """Return the object of that number, even if it was destroyed, or the live one of that name. Raises
        LookupError."""
        for one in self._known.get(kind, {}).values():
            if key == one.number or (key == one.name and one.alive):
                return one
        raise LookupError(f"the run has no {kind} {key!r}")

    def numbers(self, kind: str) -> list[int]:
        """Return the numbers of live objects."""
        return [one.number for one in self._known.get(kind, {}).values() if one.alive]

    def forget(self, kind: str, number: int) -> None:
        """Mark an object as destroyed."""
        self._known[kind][number].alive = False


class Desk:
    """The channel in which processes put operations on objects of other nodes, and what event loops wait for: in a run
    of one node (`peers` is None) it is opened for these."""

    def __init__(self, peers: Peers | None) -> None:
        self.wire = peers.links.wire if peers is not None else None
        if self.wire is not None:
            self.wire.open_desk()

    def handlers(self) -> list[Handler]:
        """Return the handlers of the requests that this object serves."""
        return [objects.OpenDesk.served_by(lambda r: self._open())]

    def _open(self) -> None:
        if self.wire is None:
            self.wire = _core.Wire(0)
            self.wire.open_desk()

    def look_at_all(self) -> None:
        """Look at all that is waited for."""
        if self.wire is not None:
            self.wire.look_at_all()


class Notices:
    """Tells the nodes that follow groups and processes of their ends here. Each notice wakes another agent, which takes
    as long as many starts. So while this node is starting processes, successful ends of members are batched."""

    def __init__(self, peers: Peers, spawner: Spawner) -> None:
        self._peers = peers
        self._spawner = spawner
        self._untold: dict[int, list[MemberEvent]] = {}

    def tell(self, home: int, event: MemberEvent) -> None:
        """Notify a node of an event. Events of a node are sent in order."""
        untold = self._untold.setdefault(home, [])
        untold.append(event)
        if event.failed or event.code != 0 or event.record is not None or not self._spawner.unanswered:
            self._send(home)
        elif len(untold) == 1:
            asyncio.get_running_loop().call_later(_BATCH_S, self._send, home)

    def _send(self, home: int) -> None:
        events = self._untold.pop(home, [])
        if events and home not in self._peers.lost:
            self._peers.links.notify(home, MembersEnded(events))


_NOT_STARTED = 127  # the exit code that is reported to a job for a member that could not be started


class Services:
    """The services of one node, which are connected only here. `zygote` is its process id; `peers` are the other nodes,
    None if the run has only one. The run ends once `over` is done."""

    def __init__(
        self, run: Run, zygote: int, spawner: Spawner, peers: Peers | None, over: asyncio.Future[None]
    ) -> None:
        self.run = run
        self.spawner = spawner
        self.peers = peers
        self.over = over
        self.writing: asyncio.Future[None] | None = None  # the last checkpoints, once processes were told to wait
        self.loop = asyncio.get_running_loop()
        self.host_name = peers.host(run.node) if peers is not None else socket.gethostname()
        self.streams = Streams(run.label, run.node, self.host_name)
        self.registry = Registry(run.node, zygote)
        self.jobs = Jobs(run.node, peers)
        self.processes = Processes(run, spawner, self.registry, self.jobs, peers, self.streams)
        shared = self.registry, self.processes, self.streams, self.jobs
        self.groups = Groups(Home(run.node, self.host_name, *shared, peers))
        self._notices = Notices(peers, spawner) if peers is not None else None
        self.shards = Shards(run, peers)
        self.trackers = Trackers()
        self.remote = RemoteObjects(peers) if peers is not None else None
        # Of processes that have ended, and whose end is told once their messages to other nodes are there.
        self._ending: dict[int, asyncio.Future[Any]] = {}  # by puid
        # The requests that this node executes itself.
        self.table = Table(self.registry.handlers(self._catch_up, self._reported))
        self.table.serve(self.groups.handlers())
        self.table.serve(NamedGroups(run.node).handlers())
        self.table.serve(NamedObjects().handlers())
        self.desk = Desk(peers)
        self.table.serve(self.desk.handlers())
        self.table.serve(self.jobs.handlers())
        self.table.serve(self.processes.handlers())
        self.table.serve(self.shards.handlers())
        self.table.serve(self.trackers.handlers())
        if self.remote is not None:
            self.table.serve(self.remote.handlers())

    def _catch_up(self, identifier: object) -> asyncio.Future[Any]:
        """Return a future that is done once all events of the zygote up to now are handled; see Spawner.catch_up()."""
        return then(self.spawner.catch_up(identifier), lambda _: self._ends(identifier))

    def _reported(self, identifier: object) -> asyncio.Future[Any]:
        """Return a future that is done once the zygote has reported on that process; see Spawner.reported()."""
        return then(self.spawner.reported(identifier), lambda _: self._ends(identifier))

    def _ends(self, identifier: object) -> asyncio.Future[Any] | None:
        """Return a future that is done once the end of that process, or of all, is told; None if it is."""
        ending = [each for puid, each in self._ending.items() if identifier == puid or not isinstance(identifier, int)]
        return asyncio.ensure_future(asyncio.wait(ending)) if ending else None

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
        elif self.desk.wire is not None:
            self.desk.wire.left(pid)
        if self.desk.wire is not None:
            self.desk.wire.look_at_all()  # it may not have told what it changed
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
            if record is not None and self._notices is not None and isinstance(event, Exited):
                self._notices.tell(node, MemberEvent(puid, 0, "", event.code, record=record))
            return
        if self.jobs.ranks:
            self.jobs.ended(puid, event.code if isinstance(event, Exited) else _NOT_STARTED)
        if isinstance(event, Exited):
            told = MemberEvent(puid, group, self.streams.errors.pop(puid), event.code)
        else:
            told = MemberEvent(puid, group, event.text, failed=True, error=event.error)
        home = group >> PUID_NODE_SHIFT  # the node that follows it
        if home == self.run.node or self._notices is None:
            self.groups.on_event(told)
        else:
            self._notices.tell(home, told)

    def end(self) -> None:
        """End the run; may be called again."""
        if not self.over.done():
            self.over.set_result(None)
        elif self.writing is not None:
            self.writing.cancel()
