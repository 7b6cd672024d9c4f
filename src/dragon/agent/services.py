"""What the agent of a node serves: to the processes of its node, and to the agents of others."""

from __future__ import annotations

import asyncio
import functools
import signal
import socket
from typing import Any

from dragon.agent.groups.groups import Groups
from dragon.agent.groups.named_groups import NamedGroups
from dragon.agent.groups.notices import GroupNotices
from dragon.agent.mpi.jobs import Jobs
from dragon.agent.objects.named_objects import NamedObjects
from dragon.agent.objects.peers import Peers
from dragon.agent.objects.remote_objects import RemoteObjects
from dragon.agent.output.streams import Streams
from dragon.agent.processes.registry import Registry
from dragon.agent.processes.spawner import Spawner
from dragon.agent.processes.starting import Processes
from dragon.agent.processes.trackers import Trackers
from dragon.agent.shards.shards import Shards
from dragon.agent.wire.responses import then
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
        self._parts: dict[str, Any] = {
            "registry": self.registry,
            "groups": self.groups,
            "named_groups": NamedGroups(run.node),
            "named_objects": NamedObjects(),
            "jobs": self.jobs,
            "processes": self.processes,
            "shards": self.shards,
            "trackers": self.trackers,
        }

    def add(self, part: str, service: Any) -> None:
        """Serve one more, whose OPERATIONS can be asked for."""
        self._parts[part] = service

    def do(self, part: str, name: str, arguments: dict[str, Any], descriptors: list[int]) -> Any:
        """Do what this node can do alone; what this returns or raises, or its future, is the reply."""
        served = self._parts.get(part)
        if served is None or name not in served.OPERATIONS:
            raise ValueError(f"the agent knows no operation {part}.{name}")
        if descriptors:
            arguments["descriptors"] = descriptors
        if part == "named_objects":
            arguments.pop("node", None)
        do = functools.partial(getattr(served, name), **arguments)
        if part == "registry" or name == "lifetimes":
            return then(self.spawner.catch_up(arguments.get("identifier")), lambda _: do())
        return do()

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
        if kind == "exited":
            self.streams.catch_up(event["puid"])
            event = {**event, "text": self.streams.errors.pop(event["puid"])}
        else:
            event = {name: event[name] for name in ("puid", "group", "text", "error")}
        home = self.groups.home_of(event["group"])
        if home == self.run.node or self._notices is None:
            self.groups.on_event(kind, **event)
        else:
            self._notices.tell(home, kind, event)

    def end(self) -> None:
        """End the run; may be called again."""
        if not self.over.done():
            self.over.set_result(None)
