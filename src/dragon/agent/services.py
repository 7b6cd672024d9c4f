"""What the agent of a node serves: to the processes of its node, and to the agents of others."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import Any

from dragon.agent.groups.groups import Groups
from dragon.agent.groups.named_groups import NamedGroups
from dragon.agent.groups.notices import GroupNotices
from dragon.agent.mpi.jobs import Jobs
from dragon.agent.objects.local_waits import LocalWaits
from dragon.agent.objects.named_objects import NamedObjects
from dragon.agent.objects.peers import Peers
from dragon.agent.objects.remote_objects import RemoteObjects
from dragon.agent.output.streams import Streams
from dragon.agent.processes.registry import Registry
from dragon.agent.processes.spawner import Spawner
from dragon.agent.processes.starting import Processes
from dragon.agent.processes.trackers import Trackers
from dragon.agent.shards.shards import Shards
from dragon.agent.wire.table import Table
from dragon.runtime.protocol.agents import MemberEvent
from dragon.runtime.run import Run

__all__ = ["Services"]


class Services:
    """The services of one node, which know of each other only what they are given here. `zygote` is its process id,
    `peers` are the other nodes, where the run has any. Once `over` is done the run ends."""

    def __init__(
        self, run: Run, zygote: int, spawner: Spawner, peers: Peers | None, over: asyncio.Future[None]
    ) -> None:
        self.run = run
        self.spawner = spawner
        self.peers = peers
        self.over = over
        self.loop = asyncio.get_running_loop()
        self.host_name = peers.host(run.node) if peers is not None else socket.gethostname()
        self.streams = Streams(run.label, run.node, self.host_name)
        self.registry = Registry(run.node, zygote)
        self.jobs = Jobs(run.node, peers)
        self.processes = Processes(run, spawner, self.registry, self.jobs, peers)
        self.groups = Groups(run.node, self.registry, self.processes, self.jobs, self.host_name, peers)
        self._notices = GroupNotices(peers, spawner) if peers is not None else None
        self.shards = Shards(run, peers)
        self.trackers = Trackers()
        self.remote = RemoteObjects(peers) if peers is not None else None
        self.table = Table(self.registry.handlers(spawner.catch_up))  # of what this node can do alone
        self.table.serve(self.groups.handlers())
        self.table.serve(NamedGroups(run.node).handlers())
        self.table.serve(NamedObjects().handlers())
        self.table.serve(LocalWaits(peers).handlers())
        self.table.serve(self.jobs.handlers())
        self.table.serve(self.processes.handlers())
        self.table.serve(self.shards.handlers())
        self.table.serve(self.trackers.handlers())
        if self.remote is not None:
            self.table.serve(self.remote.handlers())

    def on_event(self, kind: str, event: dict[str, Any], descriptors: list[int]) -> None:
        """The zygote says what became of a process, or hands over what one writes to."""
        if kind == "stream":
            self.streams.add(**event, descriptors=descriptors)
            return
        if kind == "exited" and self.remote is not None:
            pid = self.registry.query(event["puid"]).pid
            self.remote.left(pid)
            self.shards.client_left(self.run.node, pid)
        leaves = event.pop("leaves", None)
        getattr(self.registry, kind)(**event)
        if kind == "exited" and not leaves:
            killed = event["code"] == -signal.SIGKILL
            self.groups.creator_ended(event["puid"], killed)
            self.processes.creator_ended(event["puid"], killed)
        if event["group"] and kind != "started":
            self.jobs.ended(event["puid"], event.get("code", 127))
            self._tell_group(kind, event)

    def _tell_group(self, kind: str, event: dict[str, Any]) -> None:
        puid, group = event["puid"], event["group"]
        if kind == "exited":
            self.streams.catch_up(puid)
            told = MemberEvent(puid, group, self.streams.errors.pop(puid), event["code"])
        else:
            told = MemberEvent(puid, group, event["text"], failed=True, error=event["error"])
        home = self.groups.home_of(group)
        if home == self.run.node or self._notices is None:
            self.groups.on_event(told)
        else:
            self._notices.tell(home, told)

    def end(self) -> None:
        """End the run; may be called again."""
        if not self.over.done():
            self.over.set_result(None)
