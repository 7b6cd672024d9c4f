"""The MPI jobs of a node: those that have ranks here, and those whose groups this node follows.

A job is followed by the node that follows its group. Data that ranks exchange is sent there and back once per barrier.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, TypeVar

from dragon.agent.mpi.job import Job, Joining, Side
from dragon.agent.mpi.launched import Launched
from dragon.agent.mpi.pmi1 import Pmi1
from dragon.agent.mpi.pmix import Pmix, PmixServer, PmixUnavailableError
from dragon.agent.mpi.segments import remove_segments
from dragon.infrastructure.facts import PMIBackend
from dragon.runtime.log import runtime_log
from dragon.runtime.nodes import own_node
from dragon.runtime.protocol.agents import LookUp, OfJob, Part, Program, Publish, SpawnRanks, Unpublish
from dragon.runtime.protocol.request import Caller, Request
from dragon.runtime.rpc import Table, serves

if TYPE_CHECKING:
    from dragon.agent.wire.links import Links

log = runtime_log("mpi")

_Answer = TypeVar("_Answer")

_LINGER_S = 0.3


class Jobs:
    """All MPI jobs of a node."""

    def __init__(self, node: int, links: Links | None, table: Table) -> None:
        self._node = node
        self._table = table
        table.serve(self)
        table.serve_each(Job, self._job)
        self._links = links
        self._followed: dict[str, Job] = {}
        self._serving: dict[str, Side] = {}
        self._removing: list[float] = []  # the start times of jobs whose memory is being removed
        self._pmix: dict[str, PmixServer] = {}
        self.ranks: dict[int, tuple[str, int]] = {}  # by puid: job and rank
        self._services: dict[str, str] = {}  # MPI_Publish_name, on the first node

    # ---- following

    def follow(self, job: Job) -> None:
        self._followed[job.name] = job

    def forget(self, job: Job) -> None:
        self._followed.pop(job.name, None)

    def _job(self, name: str) -> Job:
        if name not in self._followed:
            raise LookupError("the job has ended")
        return self._followed[name]

    # ---- what nodes ask the one that follows a job

    @serves(SpawnRanks)
    async def _spawn(self, job: str, rank: int, programs: list[Program]) -> None:
        await self._job(job).spawn(rank, programs)

    @serves(Publish)
    def _publish(self, service: str, port: str) -> None:
        self._services[service] = port

    @serves(Unpublish)
    def _unpublish(self, service: str) -> None:
        self._look_up(service)
        del self._services[service]

    @serves(LookUp)
    def _look_up(self, service: str) -> str:
        if service not in self._services:
            raise LookupError(f"no process has published {service!r}")
        return self._services[service]

    # ---- serving

    async def serve(self, part: Part) -> None:
        """Prepare this node for ranks of a job that are about to be started here."""
        # Simulated nodes share the CPUs of their machine.
        ranks = part.size if own_node().real_cpus else len(self.ranks) + len(part.ranks)
        part.crowded = ranks > len(os.sched_getaffinity(0))
        if part.backend == PMIBackend.PMIX:
            side: Side = Pmix(part, self.ask, self.tell, self._pmix_server(part.library))
        else:
            kind = Launched if part.backend == PMIBackend.LAUNCHER else Pmi1
            side = kind(part, self.ask, self.tell)
        await side.prepare()
        self._serving[part.name] = side

    def _pmix_server(self, library: str) -> PmixServer:
        if not library:
            raise PmixUnavailableError("no libpmix.so.2 was found beside the program's MPI library")
        if library not in self._pmix or self._pmix[library].is_lost:
            self._pmix[library] = PmixServer(library)
        return self._pmix[library]

    def join(self, part: Part, rank: int, puid: int) -> Joining:
        joining = self._serving[part.name].join(rank)
        self.ranks[puid] = part.name, rank
        return joining

    def ended(self, puid: int, code: int) -> None:
        """Handle the end of a process of this node, which may have been a rank."""
        name, rank = self.ranks.pop(puid, ("", 0))
        if not name:
            return
        handled = self._serving[name].ended(rank, code)
        if any(other == name for other, _ in self.ranks.values()):
            return
        if handled is None:
            self._close_soon(name)
        else:
            handled.add_done_callback(lambda _: self._close_soon(name))

    def _close_soon(self, name: str) -> None:
        asyncio.get_running_loop().call_later(_LINGER_S, self._close, name)

    def _close(self, name: str) -> None:
        side = self._serving.pop(name)
        since = side.since
        if not side.close():
            self._removing.append(since)
            removed = asyncio.get_running_loop().run_in_executor(None, remove_segments, since)
            removed.add_done_callback(lambda _: self._removing.remove(since))

    def close(self) -> None:
        """Close all jobs at the end of the run, when no rank is alive."""
        servers = [server.since for server in self._pmix.values()]
        since = min([*(side.since for side in self._serving.values()), *self._removing, *servers], default=None)
        for serving in self._serving.values():
            serving.close()
        for server in self._pmix.values():
            server.close()
        if since is not None:
            remove_segments(since)

    async def ask(self, node: int, request: Request[_Answer]) -> _Answer:
        if node != self._node and self._links is not None:
            return await self._links.ask(node, request)
        answer = self._table.do(request, Caller(self._node))
        return await answer if isinstance(answer, asyncio.Future) else answer

    def tell(self, node: int, request: OfJob[None]) -> None:
        if node != self._node and self._links is not None:
            self._links.forward(node, request)
        elif request.job in self._followed:
            self._table.do(request, Caller(self._node))
