"""The agent of a node while it serves."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

from dragon import _core
from dragon.agent.clients import Clients
from dragon.agent.processes.starting import Spawner
from dragon.agent.report import report, waiting
from dragon.agent.services import Services
from dragon.agent.telemetry.service import Telemetry
from dragon.runtime.folder import hold
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.request import Caller, Request
from dragon.runtime.protocol.run import EndRun, LostNodes, ReportYourself, Waits
from dragon.runtime.run import WRITING, Run
from dragon.web import serving

if TYPE_CHECKING:
    from dragon.agent.cluster import Cluster
    from dragon.agent.meeting import Met

log = runtime_log("agent")

_Answer = TypeVar("_Answer")

_SWEEP_EVERY_S = 10.0  # seconds
_WRITE_NOTICE_S = 1.0


class Agent:
    """The agent of a node. Everything in it runs in one event loop.

    From its construction on it serves the processes that connect to `requests`, and in a run of several nodes the
    others, which are in `met`. `zygote` is the zygote's process id; the run ends once `over` is done.
    """

    def __init__(
        self,
        run: Run,
        zygote: int,
        requests: socket.socket,
        spawner: Spawner,
        met: Met | None,
        over: asyncio.Future[None],
    ) -> None:
        self.run = run
        self.zygote = zygote
        self._loop = asyncio.get_running_loop()
        self.services = Services(run, zygote, spawner, met.peers if met is not None else None, over)
        spawner.report_to(self.services.on_event)
        self._held = hold(run.folder)
        self._sweep()
        self.telemetry = Telemetry(self.services)
        self.services.table.serve(self.telemetry.handlers())
        self.services.table.serve(
            [
                EndRun.served_by(lambda r: self.end_run()),
                LostNodes.served_by(lambda r: met.peers.lost_nodes() if met is not None else []),
                ReportYourself.served_by(lambda r: report(self.services, zygote, self.clients.pending)),
                Waits.served_by(lambda r: waiting(self.services, zygote, self.clients.pending)),
            ]
        )
        table = self.services.table
        self._do: Callable[[Request[object], Caller], object] = table.do
        self.cluster: Cluster | None = None
        if met is not None:
            from dragon.agent.cluster import Cluster
            from dragon.agent.router import Router

            self._do = Router(table, met.peers).do
            self.cluster = Cluster(
                met, self.services, self.handle
            )  # executes the requests that others have sent already
        self._views = serving.Views(self.ask) if met is None and serving.are_wanted() else None
        self._opening = self._loop.create_task(self._views.open()) if self._views is not None else None
        self.clients = Clients(requests, self.handle)

    def _sweep(self) -> None:
        """Free the memory of ended processes that the zygote did not start: programs that joined the run, and forks of
        users."""
        if _core.reap_dead():
            self.services.desk.look_at_all()
        self._loop.call_later(_SWEEP_EVERY_S, self._sweep)

    def end_run(self) -> None:
        """End the run, on all nodes."""
        self.cluster.end_run() if self.cluster is not None else self.services.end()

    # ---- requests

    def handle(self, request: Request[object], pid: int, descriptors: list[int]) -> object:
        """Execute a request of a process. The result, exception or future is the answer."""
        return self._do(request, Caller(self.run.node, pid, descriptors))

    async def ask(self, request: Request[_Answer]) -> _Answer:
        """Execute a request as for a process, and return the answer."""
        answer = self.handle(request, os.getpid(), [])
        if isinstance(answer, asyncio.Future):
            answer = await answer
        return cast(_Answer, answer)

    # ---- the end

    async def finish(self) -> None:
        """Clean up when all processes have ended."""
        self.clients.accept()
        await self.services.trackers.finish()
        await self.telemetry.finish()
        self.services.jobs.close()
        self.services.streams.drain()
        await self._finish_files()

    async def _finish_files(self) -> None:
        """Wait until due checkpoints are written, and notify waiting processes if that takes long. A further signal
        ends the wait."""
        written = self.services.shards.finish()
        await asyncio.wait([written], timeout=_WRITE_NOTICE_S)
        if not written.done():
            log.warning("the run ends once checkpoints that are due are written; a signal ends it at once")
            (self.run.folder / WRITING).touch()
            if self.cluster is not None:
                self.cluster.tell_writing()
            self.services.writing = written
        await asyncio.wait([written])
