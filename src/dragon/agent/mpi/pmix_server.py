"""The PMIx server of a node: a separate process, because libpmix starts threads and ends the process on fatal errors.

It serves all jobs whose ranks use the same libpmix. It communicates with the agent over an inherited socket, and ends
when the agent closes it.
"""

from __future__ import annotations

import ctypes
import os
import queue
import select
import socket
import sys
from typing import Any

import msgspec

from dragon.agent.mpi import pmix_library as pmix
from dragon.agent.mpi.frames import SIZE, framed
from dragon.agent.mpi.pmix_library import Info, Library, Module
from dragon.runtime.protocol.jobs import Part

_KEPT = 100  # answers to fences


def send(connection: socket.socket, message: Any) -> None:
    """Send a message, waiting until there is space."""
    connection.sendall(framed(message))


def receive(connection: socket.socket) -> Any:
    """Return the next message; None at the end."""
    size = _read(connection, SIZE)
    return msgspec.msgpack.decode(_read(connection, int.from_bytes(size, "little"))) if size else None


def _read(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = connection.recv(min(size - len(data), 2**20))
        if not more:
            return b""
        data += more
    return bytes(data)


class Server:
    """Calls of libpmix, in its own thread, are queued and executed by the main thread."""

    def __init__(self, agent: socket.socket, library: str, name: str, node: int, folder: str) -> None:
        self.agent = agent
        self.library = Library(library)
        self.called: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self.bell = os.eventfd(0)
        self.parts: dict[str, Part] = {}
        self.fences: dict[tuple[str, str], tuple[Any, Any]] = {}
        self.counts: dict[tuple[str, str], int] = {}
        self.given: list[Any] = []  # kept alive, since libpmix may still read it
        self.module = Module()
        self.module.client_finalized = type(self.module.client_finalized)(self._on_finalized)
        self.module.client_connected2 = type(self.module.client_connected2)(self._on_connected)
        self.module.abort = type(self.module.abort)(self._on_abort)
        self.module.fence_nb = type(self.module.fence_nb)(self._on_fence)
        self.module.job_control = type(self.module.job_control)(self._on_job_control)
        infos = Info()
        infos.string("pmix.srvr.tmpdir", folder)
        infos.string("pmix.sys.tmpdir", folder)
        infos.string("pmix.srv.nspace", name)
        infos.rank("pmix.srv.rank", node)
        self.library.initialise(self.module, infos)

    def open(self, part: Part, folder: str) -> dict[int, dict[str, str]]:
        """Prepare for the ranks of a job. Returns the environment variables of each."""
        nodes = sorted(part.hosts)
        ranks_of = {node: [rank for rank, at in enumerate(part.placement) if at == node] for node in nodes}
        listed = {node: ",".join(map(str, ranks)) for node, ranks in ranks_of.items()}
        infos = Info()
        infos.uint32("pmix.univ.size", part.universe)
        infos.uint32("pmix.max.size", part.size)
        infos.uint32("pmix.job.size", part.size)
        infos.uint32("pmix.job.napps", 1 + max(part.applications))
        infos.uint32("pmix.num.nodes", len(nodes))
        infos.uint32("pmix.local.size", len(part.ranks))
        infos.uint32("pmix.node.size", len(part.ranks))
        infos.string("pmix.lpeers", listed[part.node])
        infos.rank("pmix.lldr", ranks_of[part.node][0])
        if part.crowded:
            infos.flag("pmix.ndosub")  # Open MPI checks only whether it is present
        infos.string("pmix.jobid", part.name)
        infos.string("pmix.tmpdir", folder)
        infos.string("pmix.nsdir", folder)
        infos.regex("pmix.nmap", self.library.regex([part.hosts[node] for node in nodes]))
        infos.regex("pmix.pmap", self.library.ranges([listed[node] for node in nodes]))
        for rank, node in enumerate(part.placement):
            one = Info()
            one.rank("pmix.rank", rank)
            one.uint16("pmix.lrank", ranks_of[node].index(rank))
            one.uint16("pmix.nrank", ranks_of[node].index(rank))
            one.string("pmix.hname", part.hosts[node])
            one.uint32("pmix.nodeid", nodes.index(node))
            one.uint32("pmix.appnum", part.applications[rank])
            one.rank("pmix.grank", rank)
            one.rank("pmix.apprank", rank)
            infos.infos("pmix.pdata", one)
        self.library.register_namespace(part.name, len(part.ranks), infos)
        for rank in part.ranks:
            self.library.register_client(part.name, rank)
        self.parts[part.name] = part
        return {rank: self.library.environment(part.name, rank) for rank in part.ranks}

    def close(self, name: str) -> None:
        """Remove a job that has ended."""
        del self.parts[name]
        self.library.deregister_namespace(name)
        for key in [key for key in self.fences if key[0] == name]:
            del self.fences[key]

    # ---- on libpmix's thread

    def _call(self, *what: Any) -> None:
        self.called.put(what)
        os.eventfd_write(self.bell, 1)

    def _on_connected(self, proc: Any, *_: Any) -> int:
        self._call("initialised", proc.contents.nspace.decode(), proc.contents.rank)
        return pmix.OPERATION_SUCCEEDED

    def _on_finalized(self, proc: Any, *_: Any) -> int:
        self._call("finalised", proc.contents.nspace.decode(), proc.contents.rank)
        return pmix.OPERATION_SUCCEEDED

    def _on_abort(self, proc: Any, _object: Any, status: int, text: bytes | None, *_: Any) -> int:
        said = (text or b"").decode(errors="replace")
        self._call("aborted", proc.contents.nspace.decode(), proc.contents.rank, status, said)
        return pmix.OPERATION_SUCCEEDED

    def _on_fence(
        self, procs: Any, count: int, _infos: Any, _n: int, data: int | None, size: int, callback: int, cbdata: int
    ) -> int:
        ranks = [procs[i].rank for i in range(count)]
        given = ctypes.string_at(data, size) if data else b""
        self._call("fence", procs[0].nspace.decode(), ranks, given, callback, cbdata)
        return pmix.SUCCESS

    def _on_job_control(self, *_: Any) -> int:
        return pmix.OPERATION_SUCCEEDED

    # ---- on the main thread

    def serve(self) -> None:
        """Serve until the agent closes the connection."""
        while True:
            ready, _, _ = select.select([self.agent.fileno(), self.bell], [], [])
            if self.bell in ready:
                os.eventfd_read(self.bell)
                self._tell_all()
            if self.agent.fileno() in ready:
                message = receive(self.agent)
                if message is None:
                    return
                self._do(*message)

    def _do(self, what: str, name: str, *values: Any) -> None:
        if what == "open":
            part, folder = values
            try:
                environments = self.open(msgspec.convert(part, Part, strict=False), folder)
            except pmix.PmixError as error:
                send(self.agent, ("failed", name, str(error)))
            else:
                send(self.agent, ("ready", name, environments))
        elif what == "fenced":
            self._fenced(name, *values)
        elif what == "settle":
            self._tell_all()
            send(self.agent, ("settled", name))
        else:
            self.close(name)

    def _tell_all(self) -> None:
        while not self.called.empty():
            self._tell(*self.called.get())

    def _tell(self, what: str, name: str, *values: Any) -> None:
        if what != "fence":
            send(self.agent, (what, name, *values))
        elif name in self.parts:
            self._fence(name, self.parts[name], *values)

    def _fence(self, name: str, part: Part, ranks: list[int], data: bytes, callback: int, cbdata: int) -> None:
        everyone = pmix.WILDCARD in ranks
        nodes = sorted(set(part.placement if everyone else [part.placement[rank] for rank in ranks]))
        of = "all" if everyone else ",".join(map(str, sorted(ranks)))
        self.counts[name, of] = self.counts.get((name, of), 0) + 1
        key = f"fence {self.counts[name, of]} of {of}"
        self.fences[name, key] = callback, cbdata
        send(self.agent, ("fence", name, key, nodes, data))

    def _fenced(self, name: str, key: str, parts: list[bytes]) -> None:
        if (name, key) not in self.fences:
            return  # the job has ended meanwhile
        callback, cbdata = self.fences.pop((name, key))
        data = b"".join(parts)
        memory = ctypes.create_string_buffer(data, len(data)) if data else None
        self.given = [*self.given[-_KEPT:], memory]
        address = ctypes.addressof(memory) if memory is not None else None
        pmix.ModexCallback(callback)(pmix.SUCCESS, address, len(data), cbdata, None, None)


def main(descriptor: int) -> None:
    """Serve the jobs that the agent describes over that descriptor."""
    agent = socket.socket(fileno=descriptor)
    library, name, node, folder = receive(agent)
    try:
        server = Server(agent, library, name, node, folder)
    except (OSError, pmix.PmixError) as error:
        send(agent, ("failed", "", f"{library}: {error}"))
        sys.exit(1)
    send(agent, ("ready", "", {}))
    server.serve()
    server.library.finalise()
