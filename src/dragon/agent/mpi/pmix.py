"""PMIx, which Open MPI speaks: the agent's side of a process that has libpmix serve the ranks of a node."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from dragon.agent.mpi.part import Part, Way
from dragon.runtime.log import runtime_log
from dragon.runtime.run import this_run

__all__ = ["Pmix", "PmixUnavailableError"]

log = runtime_log("mpi")

_SIZE = 8
_AWAIT_LAST = 0.1  # seconds
_PATIENCE = 3.0
_LOOK_AGAIN = 0.02
_START = "import sys; sys.path.append({path!r}); from dragon.agent.mpi.pmix_server import main; main({descriptor})"


class PmixUnavailableError(RuntimeError):
    """There is no PMIx server to be had."""


class Pmix:
    """One node's side of a job."""

    descriptor_variable = ""

    def __init__(self, part: Part, way: Way) -> None:
        self.part = part
        self.way = way
        self.initialised: set[int] = set()
        self.finalised: set[int] = set()
        self._environments: dict[int, dict[str, str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="pmix-", dir=this_run().folder))

    async def prepare(self) -> None:
        """Have the server started. Raises PmixUnavailableError."""
        if not self.part.library:
            raise PmixUnavailableError("no libpmix.so.2 was found beside the program's Open MPI")
        ours, theirs = socket.socketpair()
        code = _START.format(path=str(Path(__file__).parents[3]), descriptor=theirs.fileno())
        self._server = subprocess.Popen(
            [sys.executable, "-P", "-c", code], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
        theirs.close()
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        self._send((self.part, self.part.library, str(self._folder)))
        message = await _receive(reader)
        if message is None or message[0] != "ready":
            self.close()
            raise PmixUnavailableError(message[1] if message else "the PMIx server did not start")
        self._environments = {int(rank): variables for rank, variables in message[1].items()}
        self._soon(self._listen(reader))

    def join(self, rank: int) -> tuple[Mapping[str, str | None], int | None]:
        """Its environment."""
        local = self.part.ranks.index(rank)
        # Segments that a killed rank leaves behind go with the job's folder.
        return {
            **self._environments[rank],
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": str(self.part.size),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(local),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(len(self.part.ranks)),
            "MPI_LOCALRANKID": str(local),
            "MPI_LOCALNRANKS": str(len(self.part.ranks)),
        }, None

    def ended(self, rank: int, code: int) -> None:
        """Its process has ended: in order, too early, or without ever having been a rank of the job."""
        # The server may be about to tell what the rank said last.
        asyncio.get_running_loop().call_later(_AWAIT_LAST, self._ended, rank, code)

    def _ended(self, rank: int, code: int) -> None:
        if rank not in self.initialised:
            self.way.missing(rank)
        elif rank not in self.finalised:
            self.way.fail(rank, "" if code else "ended without MPI_Finalize", code or 1)

    def close(self) -> bool:
        """End the server, and remove what the ranks left."""
        for task in self._tasks:
            task.cancel()
        if self._writer is not None:
            self._writer.close()
        if self._server is not None:
            self._soon(self._reap(self._server))
        return self.initialised <= self.finalised

    async def _reap(self, server: subprocess.Popen[bytes]) -> None:
        deadline = asyncio.get_running_loop().time() + _PATIENCE
        while server.poll() is None:
            if asyncio.get_running_loop().time() > deadline:
                server.kill()
            await asyncio.sleep(_LOOK_AGAIN)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _soon(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _send(self, message: Any) -> None:
        assert self._writer is not None
        data = msgspec.msgpack.encode(message)
        self._writer.write(len(data).to_bytes(_SIZE, "little") + data)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while (message := await _receive(reader)) is not None:
            what, *values = message
            if what == "fence":
                self._soon(self._fence(*values))
            elif what == "aborted":
                rank, status, text = values
                said = f": {' '.join(text.split())}" if text else ""
                self.way.fail(rank, f"aborted the job with exit code {status}{said}", status or 1, at_once=True)
            elif what == "finalised":
                self.finalised.add(values[0])
            else:
                self.initialised.add(values[0])
                if len(self.initialised) == 1:
                    self.way.begun()
        self.way.fail(self.part.ranks[0], "lost its PMIx server", 1)

    async def _fence(self, key: str, nodes: list[int], data: bytes) -> None:
        given = await self.way.exchange(key, nodes, data)
        self._send((key, [given[node] for node in sorted(given)]))


async def _receive(reader: asyncio.StreamReader) -> Any:
    try:
        size = int.from_bytes(await reader.readexactly(_SIZE), "little")
        return msgspec.msgpack.decode(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
