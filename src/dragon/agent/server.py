"""The agent of a node while it serves."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import msgspec

from dragon import _core
from dragon.agent.clients import Clients
from dragon.agent.cluster import Cluster
from dragon.agent.processes.spawner import Spawner
from dragon.agent.report import report
from dragon.agent.services import Services
from dragon.agent.telemetry.service import Telemetry
from dragon.runtime.folder import hold
from dragon.runtime.log import runtime_log
from dragon.runtime.run import WRITING, Run
from dragon.web import serving

__all__ = ["Agent"]

log = runtime_log("agent")

_SWEEP_EVERY = 10.0  # seconds
_SOON = 1.0


class Agent:
    """One per node. Everything in it runs on one event loop.

    It serves from when it is made, the processes that call on `requests`, and in a run of several nodes those of
    `cluster`. `zygote` is the zygote's process id; once `over` is done the run ends.
    """

    def __init__(
        self,
        run: Run,
        zygote: int,
        requests: socket.socket,
        spawner: Spawner,
        cluster: Cluster | None,
        over: asyncio.Future[None],
    ) -> None:
        self.run = run
        self.zygote = zygote
        self.cluster = cluster
        self._loop = asyncio.get_running_loop()
        self.services = Services(run, zygote, spawner, cluster.peers if cluster is not None else None, over)
        spawner.report_to(self.services.on_event)
        self._held = hold(run.folder)
        self._sweep()
        self.telemetry = Telemetry(self.services)
        self.services.add("telemetry", self.telemetry)
        if cluster is not None:
            cluster.open(self.services, self.ask)  # which does what others have asked for already
        self._views = serving.Views(self.ask) if cluster is None and serving.are_wanted() else None
        self._opening = self._loop.create_task(self._views.open()) if self._views is not None else None
        self.clients = Clients(requests, self.handle)

    def _sweep(self) -> None:
        """Free what processes left that the zygote did not start: programs that joined the run, a user's own forks."""
        _core.reap_dead()
        self._loop.call_later(_SWEEP_EVERY, self._sweep)

    # ---- requests

    def handle(self, caller: int, operation: str, arguments: dict[str, Any], descriptors: list[int]) -> Any:
        """Do what a process asked for; what this returns or raises, or its future, is the reply."""
        if operation == "end":
            self.cluster.end_run() if self.cluster is not None else self.services.end()
            return None
        if operation == "report":
            return report(self.services, self.zygote, self.clients.pending)
        part, _, name = operation.partition(".")
        if self.cluster is not None:
            remote = self.services.remote
            if part == "remote" and remote is not None and name in remote.OPERATIONS:
                return getattr(remote, name)(caller, descriptors, **arguments)
            elsewhere = self.cluster.route(operation, arguments)
            if elsewhere is not None:
                return elsewhere
        return self.services.do(part, name, arguments, descriptors)

    async def ask(self, operation: str, arguments: dict[str, Any]) -> Any:
        """What a process would be answered, as plain data or as it is encoded."""
        answer = self.handle(os.getpid(), operation, arguments, [])
        if isinstance(answer, asyncio.Future):
            answer = await answer
        return answer if isinstance(answer, msgspec.Raw) else msgspec.to_builtins(answer)

    # ---- the end

    async def finish(self) -> None:
        """Do what is left when all processes have ended."""
        self.clients.accept()
        await self.services.trackers.finish()
        await self.telemetry.finish()
        self.services.jobs.close()
        self.services.streams.drain()
        await self._finish_files()

    async def _finish_files(self) -> None:
        """Wait until checkpoints that are due are written, and tell whoever waits for this agent if it takes long."""
        written = self.services.shards.finish()
        await asyncio.wait([written], timeout=_SOON)
        if not written.done():
            log.warning("the run ends once checkpoints that are due are written")
            (self.run.folder / WRITING).touch()
            if self.cluster is not None:
                self.cluster.tell_writing()
        await written
