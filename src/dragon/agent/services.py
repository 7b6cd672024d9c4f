"""The services of a node's agent, for the processes of its node and the agents of others."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import Any

from dragon.agent.groups.group_jobs import GroupNotices
from dragon.agent.groups.groups import Groups
from dragon.agent.groups.named_groups import NamedGroups
from dragon.agent.mpi.jobs import Jobs
from dragon.agent.objects.desk import Desk
from dragon.agent.objects.named_objects import NamedObjects
from dragon.agent.objects.peers import Peers
from dragon.agent.objects.remote_objects import RemoteObjects
from dragon.agent.output.streams import Streams
from dragon.agent.processes.registry import Event, Exited, Failed, Registry, Started, Stream
from dragon.agent.processes.starting import Processes, Spawner
from dragon.agent.processes.trackers import Trackers
from dragon.agent.shards.shards import Shards
from dragon.agent.wire.responses import then
from dragon.agent.wire.table import Table
from dragon.runtime.protocol.agents import MemberEvent
from dragon.runtime.run import Run

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
        self.groups = Groups(run.node, self.registry, self.processes, self.jobs, self.host_name, peers)
        self._notices = GroupNotices(peers, spawner) if peers is not None else None
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
            self.remote.left(pid)
            self.shards.client_left(self.run.node, pid)
            under_way = self.remote.under_way(pid)
        self.desk.left(pid)
        if not event.leaves:
            killed = event.code == -signal.SIGKILL
            self.groups.creator_ended(event.puid, killed)
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
        self.streams.catch_up(event.puid)
        self.registry.exited(event)
        self._member_ended(event)

    def _member_ended(self, event: Exited | Failed) -> None:
        """Notify a job, and the group of the process."""
        puid, group = event.puid, event.group
        if not group:
            return
        if isinstance(event, Exited):
            self.jobs.ended(puid, event.code)
            told = MemberEvent(puid, group, self.streams.errors.pop(puid), event.code)
        else:
            self.jobs.ended(puid, _NOT_STARTED)
            told = MemberEvent(puid, group, event.text, failed=True, error=event.error)
        home = self.groups.home_of(group)
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
