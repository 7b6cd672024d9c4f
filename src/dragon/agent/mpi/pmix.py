"""PMIx, which Open MPI uses: the agent's side of a process in which libpmix serves the ranks of a node."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

from dragon.agent.mpi.job import Ask, JobOverError, Joining, Side, Tell
from dragon.infrastructure.structs import msgspec
from dragon.runtime.protocol.agents import Part
from dragon.runtime.protocol.request import frame
from dragon.runtime.run import this_run

_ENDED = "the PMIx server has ended"
_START = "import sys; sys.path.append({path!r}); from dragon.agent.mpi.pmix_server import main; main({descriptor})"


class PmixUnavailableError(RuntimeError):
    """Raised if no PMIx server can be started."""


class PmixServer:
    """The process in which a libpmix serves this node. It runs from the first job to the end of the run."""

    def __init__(self, library: str) -> None:
        self.library, self.since = library, time.time()
        self.jobs: dict[str, Pmix] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="pmix-", dir=this_run().folder))
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._settling: deque[asyncio.Future[None]] = deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._listening: asyncio.Task[None] | None = None
        self._starting = asyncio.ensure_future(self._start())

    @property
    def is_lost(self) -> bool:
        """Whether it could not be started, or has ended."""
        return self._starting.done() and (self._listening is None or self._listening.done())

    async def _start(self) -> None:
        ours, theirs = socket.socketpair()
        code = _START.format(path=str(Path(__file__).parents[3]), descriptor=theirs.fileno())
        command = [sys.executable, "-P", "-c", code]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        theirs.close()
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        started = self._await("")
        self._listening = asyncio.ensure_future(self._listen(reader))
        self.send(self.library, f"dragon-{secrets.token_hex(8)}", this_run().node, str(self.folder))
        await started

    def _await(self, name: str) -> asyncio.Future[dict[str, Any]]:
        future = self._answers[name] = asyncio.get_running_loop().create_future()
        return future

    async def open(self, job: Pmix) -> dict[int, dict[str, str]]:
        """Register a job. Returns the environments of its ranks here. Raises PmixUnavailableError."""
        await asyncio.shield(self._starting)
        if self.is_lost:
            raise PmixUnavailableError(_ENDED)
        self.jobs[job.part.name] = job
        answer = self._await(job.part.name)
        job.folder.mkdir()
        self.send("open", job.part.name, job.part, str(job.folder))
        return {int(rank): variables for rank, variables in (await answer).items()}

    def settled(self) -> asyncio.Future[None]:
        """Return a future that is done once all that ranks have told the server is handled, or it has ended."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.is_lost:
            future.set_result(None)
        else:
            self._settling.append(future)
            self.send("settle", "")
        return future

    def close_job(self, job: Pmix) -> None:
        if self.jobs.pop(job.part.name, None) is not None:
            self.send("close", job.part.name)
            shutil.rmtree(job.folder, ignore_errors=True)

    def send(self, *message: object) -> None:
        """Send it a message, unless it has ended, of which its jobs are notified."""
        assert self._writer is not None
        if not self.is_lost:
            self._writer.write(frame(msgspec.msgpack.encode(message)))

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "little")
                what, name, *values = msgspec.msgpack.decode(await reader.readexactly(size))
                if what == "ready":
                    self._answers.pop(name).set_result(values[0])
                elif what == "failed":
                    self._answers.pop(name).set_exception(PmixUnavailableError(values[0]))
                elif what == "settled":
                    self._settling.popleft().set_result(None)
                elif name in self.jobs:
                    self.jobs[name].on_event(what, values)
        except (asyncio.IncompleteReadError, ConnectionError):
            for answer in self._answers.values():
                answer.set_exception(PmixUnavailableError(_ENDED))
            while self._settling:
                self._settling.popleft().set_result(None)
            for job in self.jobs.values():
                job.fail(job.part.ranks[0], "lost its PMIx server", 1)


class Pmix(Side):
    """One node's side of a job."""

    def __init__(self, part: Part, ask: Ask, tell: Tell, server: PmixServer) -> None:
        super().__init__(part, ask, tell)
        self.folder = server.folder / part.name
        self._server = server
        self._environments: dict[int, dict[str, str]] = {}

    async def prepare(self) -> None:
        self._environments = await self._server.open(self)

    def join(self, rank: int) -> Joining:
        place = self.place_of(rank)
        world = {
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": str(self.part.size),
            "OMPI_COMM_WORLD_LOCAL_RANK": place["MPI_LOCALRANKID"],
            "OMPI_COMM_WORLD_LOCAL_SIZE": place["MPI_LOCALNRANKS"],
        }
        return Joining({**self._environments[rank], **world, **place})

    def on_event(self, what: str, values: list[Any]) -> None:
        if what == "fence":
            self.soon(self._fence(*values))
        elif what == "aborted":
            rank, status, text = values
            said = f": {' '.join(text.split())}" if text else ""
            self.fail(rank, f"aborted the job with exit code {status}{said}", status or 1, at_once=True)
        elif what == "finalised":
            self.finalised.add(values[0])
        else:
            self.begin(values[0])

    async def _fence(self, key: str, nodes: list[int], data: bytes) -> None:
        try:
            given = await self.exchange(key, nodes, data)
        except JobOverError:
            return
        self._server.send("fenced", self.part.name, key, [given[node] for node in sorted(given)])

    def ended(self, rank: int, code: int) -> asyncio.Future[None]:
        """Handle the end of a rank's process: after MPI_Finalize, before it, or without MPI_Init."""
        settled = self._server.settled()
        settled.add_done_callback(lambda _: super(Pmix, self).ended(rank, code))
        return settled

    def close(self) -> bool:
        self._server.close_job(self)
        return super().close()
