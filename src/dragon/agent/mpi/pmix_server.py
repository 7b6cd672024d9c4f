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
from collections.abc import Sequence
from ctypes import CFUNCTYPE, POINTER, c_bool, c_char, c_char_p, c_int, c_size_t, c_uint16, c_uint32, c_void_p
from typing import Any

from dragon.infrastructure.structs import msgspec
from dragon.runtime.protocol.agents import Part
from dragon.runtime.protocol.request import frame

SUCCESS, OPERATION_SUCCEEDED = 0, -157
WILDCARD = 2**32 - 2  # all ranks of a namespace

_BOOL, _STRING, _UINT16, _UINT32, _INFO, _DATA_ARRAY, _PROC_RANK, _REGEX = 1, 3, 13, 14, 24, 39, 40, 49


class PmixError(RuntimeError):
    """Raised if a function of libpmix fails."""


class Proc(ctypes.Structure):
    """The C structure pmix_proc_t."""

    _fields_ = (("nspace", c_char * 256), ("rank", c_uint32))


class _Bytes(ctypes.Structure):
    _fields_ = (("bytes", c_void_p), ("size", c_size_t))


class _Array(ctypes.Structure):
    _fields_ = (("type", c_uint16), ("size", c_size_t), ("array", c_void_p))


class _Data(ctypes.Union):
    _fields_ = (
        ("flag", c_bool),
        ("string", c_void_p),
        ("uint16", c_uint16),
        ("uint32", c_uint32),
        ("rank", c_uint32),
        ("bo", _Bytes),
        ("darray", POINTER(_Array)),
        ("largest", c_void_p * 3),
    )


class _Value(ctypes.Structure):
    _fields_ = (("type", c_uint16), ("data", _Data))


class _Info(ctypes.Structure):
    _fields_ = (("key", c_char * 512), ("flags", c_uint32), ("value", _Value))


ModexCallback = CFUNCTYPE(None, c_int, c_void_p, c_size_t, c_void_p, c_void_p, c_void_p)
Connected = CFUNCTYPE(c_int, POINTER(Proc), c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)
Finalized = CFUNCTYPE(c_int, POINTER(Proc), c_void_p, c_void_p, c_void_p)
Abort = CFUNCTYPE(c_int, POINTER(Proc), c_void_p, c_int, c_char_p, POINTER(Proc), c_size_t, c_void_p, c_void_p)
Fence = CFUNCTYPE(c_int, POINTER(Proc), c_size_t, c_void_p, c_size_t, c_void_p, c_size_t, c_void_p, c_void_p)
JobControl = CFUNCTYPE(c_int, POINTER(Proc), POINTER(Proc), c_size_t, c_void_p, c_size_t, c_void_p, c_void_p)


class Module(ctypes.Structure):
    """The C structure pmix_server_module_t; functions without a name here are not provided."""

    _fields_ = (
        ("client_connected", c_void_p),
        ("client_finalized", Finalized),
        ("abort", Abort),
        ("fence_nb", Fence),
        ("before_job_control", c_void_p * 15),
        ("job_control", JobControl),
        ("before_connected2", c_void_p * 7),
        ("client_connected2", Connected),
        ("later", c_void_p * 8),  # of newer versions
    )


class Info:
    """An array of pmix_info_t, with the memory that it refers to."""

    def __init__(self) -> None:
        self._entries: list[tuple[str, int, Any]] = []
        self._kept: list[Any] = []

    def flag(self, key: str) -> None:
        """Add a key whose value is true."""
        self._entries.append((key, _BOOL, True))

    def string(self, key: str, text: str) -> None:
        """Add a key with a string."""
        self._entries.append((key, _STRING, self._keep(ctypes.create_string_buffer(text.encode()))))

    def uint16(self, key: str, number: int) -> None:
        """Add a key with an unsigned 16-bit number."""
        self._entries.append((key, _UINT16, number))

    def uint32(self, key: str, number: int) -> None:
        """Add a key with an unsigned 32-bit number."""
        self._entries.append((key, _UINT32, number))

    def rank(self, key: str, number: int) -> None:
        """Add a key with the rank of a process."""
        self._entries.append((key, _PROC_RANK, number))

    def regex(self, key: str, data: bytes) -> None:
        """Add a key with a list in PMIx's compressed form, such as that of the nodes."""
        self._entries.append((key, _REGEX, self._keep(ctypes.create_string_buffer(data, len(data)))))

    def infos(self, key: str, infos: Info) -> None:
        """Add a key whose value is an array of further keys and values."""
        self._entries.append((key, _DATA_ARRAY, infos))

    def _keep(self, memory: Any) -> Any:
        self._kept.append(memory)
        return memory

    def __len__(self) -> int:
        return len(self._entries)

    def array(self) -> Any:
        """Return the array for C; this object keeps it alive."""
        array = (_Info * len(self._entries))()
        for entry, (key, kind, value) in zip(array, self._entries, strict=True):
            entry.key = key.encode()
            entry.value.type = kind
            data = entry.value.data
            if kind == _BOOL:
                data.flag = value
            elif kind == _STRING:
                data.string = ctypes.addressof(value)
            elif kind == _UINT16:
                data.uint16 = value
            elif kind == _UINT32:
                data.uint32 = value
            elif kind == _PROC_RANK:
                data.rank = value
            elif kind == _REGEX:
                data.bo = _Bytes(ctypes.addressof(value), len(value))
            else:
                inner = self._keep(value.array())
                data.darray = ctypes.pointer(self._keep(_Array(_INFO, len(value), ctypes.addressof(inner))))
                self._keep(value)
        return self._keep(array)


class Library:
    """A loaded libpmix. Raises OSError if it cannot be loaded."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status not in (SUCCESS, OPERATION_SUCCEEDED):
            text = self._library.PMIx_Error_string
            text.restype = c_char_p
            raise PmixError(f"{name}: {(text(status) or b'?').decode()} ({status})")

    def initialise(self, module: Module, infos: Info) -> None:
        """Start the PMIx server with the functions in `module`. Raises PmixError."""
        self._call("PMIx_server_init", ctypes.byref(module), infos.array(), c_size_t(len(infos)))

    def finalise(self) -> None:
        """Stop the PMIx server."""
        self._call("PMIx_server_finalize")

    def regex(self, names: Sequence[str]) -> bytes:
        """Return names of nodes in PMIx's compressed form."""
        return self._generated("PMIx_generate_regex", ",".join(names))

    def ranges(self, ranks: Sequence[str]) -> bytes:
        """Return the ranks of each node ("0,2") in PMIx's compressed form."""
        return self._generated("PMIx_generate_ppn", ";".join(ranks))

    def _generated(self, name: str, text: str) -> bytes:
        result = c_void_p()
        self._call(name, c_char_p(text.encode()), ctypes.byref(result))
        assert result.value is not None
        begin = ctypes.string_at(result.value)
        if not begin.startswith(b"blob:"):
            return begin + b"\0"
        # A string that contains a size, then that many bytes, which may be zeros.
        size = int(begin.partition(b"size=")[2].split(b":")[0])
        return ctypes.string_at(result.value, len(begin) + 1 + size)

    def register_namespace(self, name: str, local: int, infos: Info) -> None:
        """Register a job with the server: its name, its number of processes on this node, and its attributes."""
        self._call("PMIx_server_register_nspace", _name(name), local, infos.array(), c_size_t(len(infos)), None, None)

    def deregister_namespace(self, name: str) -> None:
        """Remove a job from the server."""
        self._library.PMIx_server_deregister_nspace.restype = None
        self._library.PMIx_server_deregister_nspace(_name(name), None, None)

    def register_client(self, name: str, rank: int) -> None:
        """Register a process of a job, which runs as this user."""
        proc = Proc(name.encode(), rank)
        ids = c_uint32(os.getuid()), c_uint32(os.getgid())
        self._call("PMIx_server_register_client", ctypes.byref(proc), *ids, None, None, None)

    def environment(self, name: str, rank: int) -> dict[str, str]:
        """Return the environment variables of a client."""
        proc = Proc(name.encode(), rank)
        variables = POINTER(c_char_p)()
        self._call("PMIx_server_setup_fork", ctypes.byref(proc), ctypes.byref(variables))
        result = {}
        index = 0
        while variables and variables[index]:
            key, _, value = variables[index].decode().partition("=")
            result[key] = value
            index += 1
        return result


def _name(text: str) -> Any:
    return ctypes.create_string_buffer(text.encode(), 256)


_KEPT = 100  # answers to fences


def send(connection: socket.socket, message: Any) -> None:
    """Send a message, waiting until there is space."""
    connection.sendall(frame(msgspec.msgpack.encode(message)))


def receive(connection: socket.socket) -> Any:
    """Return the next message; None at the end."""
    size = _read(connection, 4)
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
        return OPERATION_SUCCEEDED

    def _on_finalized(self, proc: Any, *_: Any) -> int:
        self._call("finalised", proc.contents.nspace.decode(), proc.contents.rank)
        return OPERATION_SUCCEEDED

    def _on_abort(self, proc: Any, _object: Any, status: int, text: bytes | None, *_: Any) -> int:
        said = (text or b"").decode(errors="replace")
        self._call("aborted", proc.contents.nspace.decode(), proc.contents.rank, status, said)
        return OPERATION_SUCCEEDED

    def _on_fence(
        self, procs: Any, count: int, _infos: Any, _n: int, data: int | None, size: int, callback: int, cbdata: int
    ) -> int:
        ranks = [procs[i].rank for i in range(count)]
        given = ctypes.string_at(data, size) if data else b""
        self._call("fence", procs[0].nspace.decode(), ranks, given, callback, cbdata)
        return SUCCESS

    def _on_job_control(self, *_: Any) -> int:
        return OPERATION_SUCCEEDED

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
            except PmixError as error:
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
        everyone = WILDCARD in ranks
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
        ModexCallback(callback)(SUCCESS, address, len(data), cbdata, None, None)


def main(descriptor: int) -> None:
    """Serve the jobs that the agent describes over that descriptor."""
    agent = socket.socket(fileno=descriptor)
    library, name, node, folder = receive(agent)
    try:
        server = Server(agent, library, name, node, folder)
    except (OSError, PmixError) as error:
        send(agent, ("failed", "", f"{library}: {error}"))
        sys.exit(1)
    send(agent, ("ready", "", {}))
    server.serve()
    server.library.finalise()
