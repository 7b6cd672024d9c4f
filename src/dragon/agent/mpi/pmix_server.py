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
from ctypes import CFUNCTYPE, POINTER, c_bool, c_char, c_char_p, c_int, c_size_t, c_uint16, c_uint32, c_void_p
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dragon.infrastructure.structs import msgspec
from dragon.runtime.protocol.agents import Part
from dragon.runtime.protocol.request import frame

T = TypeVar("T")
SUCCESS, OPERATION_SUCCEEDED = 0, -157
WILDCARD = 2**32 - 2  # all ranks of a namespace

_BOOL, _STRING, _UINT16, _UINT32, _INFO, _DATA_ARRAY, _RANK, _REGEX = 1, 3, 13, 14, 24, 39, 40, 49
# Where _Data has a value of each kind.
_FIELDS = {
    **{_BOOL: "flag", _STRING: "string", _UINT16: "uint16", _UINT32: "uint32"},
    **{_DATA_ARRAY: "darray", _RANK: "rank", _REGEX: "bo"},
}


class PmixError(RuntimeError):
    """Raised if a function of libpmix fails."""


class Proc(ctypes.Structure):
    """The C structure pmix_proc_t."""

    _fields_ = (("nspace", c_char * 256), ("rank", c_uint32))


if TYPE_CHECKING:
    Procs = ctypes._Pointer[Proc]


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
    """An array of pmix_info_t with (key, kind, value), and the memory that it refers to. The value is a string, a
    number, the bytes of a list in PMIx's compressed form, or an Info with further keys and values."""

    def __init__(self, *entries: tuple[str, int, Any]) -> None:
        self._kept: list[Any] = []
        self._entries: list[tuple[str, int, Any]] = []
        for entry in entries:
            self.add(*entry)

    def add(self, key: str, kind: int, value: Any) -> None:
        if kind == _STRING:
            value = self._address(value.encode() + b"\0")
        elif kind == _REGEX:
            value = _Bytes(self._address(value), len(value))
        elif kind == _DATA_ARRAY:
            array = self._keep(_Array(_INFO, len(value), ctypes.addressof(value.array())))
            self._keep(value)
            value = ctypes.pointer(array)
        self._entries.append((key, kind, value))

    def _address(self, data: bytes) -> int:
        return ctypes.addressof(self._keep(ctypes.create_string_buffer(data, len(data))))

    def _keep(self, memory: T) -> T:
        self._kept.append(memory)
        return memory

    def __len__(self) -> int:
        return len(self._entries)

    def array(self) -> ctypes.Array[_Info]:
        """Return the array for C; this object keeps it alive."""
        array = (_Info * len(self._entries))()
        for entry, (key, kind, value) in zip(array, self._entries, strict=True):
            entry.key, entry.value.type = key.encode(), kind
            setattr(entry.value.data, _FIELDS[kind], value)
        return self._keep(array)


class Library:
    """A loaded libpmix. Raises OSError if it cannot be loaded."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status not in (SUCCESS, OPERATION_SUCCEEDED):
            text = self._library.PMIx_Error_string
            text.restype = c_char_p
            raise PmixError(f"{name}: {(text(status) or b'?').decode()} ({status})")

    def initialise(self, module: Module, infos: Info) -> None:
        """Start the PMIx server with the functions in `module`. Raises PmixError."""
        self._call("PMIx_server_init", ctypes.byref(module), infos.array(), c_size_t(len(infos)))

    def finalise(self) -> None:
        self._call("PMIx_server_finalize")

    def compressed(self, name: str, text: str) -> bytes:
        """Return a list in PMIx's compressed form, which the function of that name makes of a text."""
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
        self._library.PMIx_server_deregister_nspace.restype = None
        self._library.PMIx_server_deregister_nspace(_name(name), None, None)

    def register_client(self, name: str, rank: int) -> None:
        """Register a process of a job, which runs as this user."""
        proc = Proc(name.encode(), rank)
        ids = c_uint32(os.getuid()), c_uint32(os.getgid())
        self._call("PMIx_server_register_client", ctypes.byref(proc), *ids, None, None, None)

    def environment(self, name: str, rank: int) -> dict[str, str]:
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


def _name(text: str) -> ctypes.Array[c_char]:
    return ctypes.create_string_buffer(text.encode(), 256)


_KEPT = 100  # answers to fences


def send(connection: socket.socket, message: object) -> None:
    """Send a message, waiting until there is space."""
    connection.sendall(frame(msgspec.msgpack.encode(message)))


def receive(connection: socket.socket) -> list[Any]:
    """Return the next message; an empty one at the end."""
    size = _read(connection, 4)
    return msgspec.msgpack.decode(_read(connection, int.from_bytes(size, "little")), type=list) if size else []


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
        self.module.client_finalized = Finalized(partial(self._on_event, "finalised"))
        self.module.client_connected2 = Connected(partial(self._on_event, "initialised"))
        self.module.abort = Abort(self._on_abort)
        self.module.fence_nb = Fence(self._on_fence)
        self.module.job_control = JobControl(lambda *_: OPERATION_SUCCEEDED)
        folders = ("pmix.srvr.tmpdir", _STRING, folder), ("pmix.sys.tmpdir", _STRING, folder)
        infos = Info(*folders, ("pmix.srv.nspace", _STRING, name), ("pmix.srv.rank", _RANK, node))
        self.library.initialise(self.module, infos)

    def open(self, part: Part, folder: str) -> dict[int, dict[str, str]]:
        """Prepare for the ranks of a job. Returns the environment variables of each."""
        nodes = sorted(part.hosts)
        ranks_of = {node: [rank for rank, at in enumerate(part.placement) if at == node] for node in nodes}
        listed = {node: ",".join(map(str, ranks)) for node, ranks in ranks_of.items()}
        hosts = self.library.compressed("PMIx_generate_regex", ",".join(part.hosts[node] for node in nodes))
        ranks = self.library.compressed("PMIx_generate_ppn", ";".join(listed[node] for node in nodes))
        infos = Info(
            ("pmix.univ.size", _UINT32, part.universe),
            *((f"pmix.{what}.size", _UINT32, part.size) for what in ("max", "job")),
            ("pmix.job.napps", _UINT32, 1 + max(part.applications)),
            ("pmix.num.nodes", _UINT32, len(nodes)),
            *((f"pmix.{what}.size", _UINT32, len(part.ranks)) for what in ("local", "node")),
            ("pmix.lpeers", _STRING, listed[part.node]),
            ("pmix.lldr", _RANK, ranks_of[part.node][0]),
            ("pmix.jobid", _STRING, part.name),
            *((f"pmix.{what}", _STRING, folder) for what in ("tmpdir", "nsdir")),
            ("pmix.nmap", _REGEX, hosts),
            ("pmix.pmap", _REGEX, ranks),
        )
        if part.crowded:
            infos.add("pmix.ndosub", _BOOL, True)  # Open MPI checks only whether it is present
        for rank, node in enumerate(part.placement):
            one = Info(
                *((f"pmix.{what}", _RANK, rank) for what in ("rank", "grank", "apprank")),
                *((f"pmix.{what}", _UINT16, ranks_of[node].index(rank)) for what in ("lrank", "nrank")),
                ("pmix.hname", _STRING, part.hosts[node]),
                ("pmix.nodeid", _UINT32, nodes.index(node)),
                ("pmix.appnum", _UINT32, part.applications[rank]),
            )
            infos.add("pmix.pdata", _DATA_ARRAY, one)
        self.library.register_namespace(part.name, len(part.ranks), infos)
        for rank in part.ranks:
            self.library.register_client(part.name, rank)
        self.parts[part.name] = part
        return {rank: self.library.environment(part.name, rank) for rank in part.ranks}

    def close(self, name: str) -> None:
        del self.parts[name]
        self.library.deregister_namespace(name)
        for key in [key for key in self.fences if key[0] == name]:
            del self.fences[key]

    # ---- on libpmix's thread

    def _call(self, *what: object) -> None:
        self.called.put(what)
        os.eventfd_write(self.bell, 1)

    def _on_event(self, what: str, proc: Procs, *_: object) -> int:
        self._call(what, proc.contents.nspace.decode(), proc.contents.rank)
        return OPERATION_SUCCEEDED

    def _on_abort(self, proc: Procs, _object: object, status: int, text: bytes | None, *_: object) -> int:
        said = (text or b"").decode(errors="replace")
        self._call("aborted", proc.contents.nspace.decode(), proc.contents.rank, status, said)
        return OPERATION_SUCCEEDED

    def _on_fence(
        self, procs: Procs, count: int, _infos: object, _n: int, data: int | None, size: int, *callback: int
    ) -> int:
        ranks = [procs[i].rank for i in range(count)]
        given = ctypes.string_at(data, size) if data else b""
        self._call("fence", procs[0].nspace.decode(), ranks, given, *callback)
        return SUCCESS

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
                if not message:
                    return
                self._do(message)

    def _do(self, message: list[Any]) -> None:
        what, name, *values = message
        if what == "open":
            part, folder = values
            try:
                send(self.agent, ("ready", name, self.open(msgspec.convert(part, Part, strict=False), folder)))
            except PmixError as error:
                send(self.agent, ("failed", name, str(error)))
        elif what == "fenced":
            self._fenced(name, *values)
        elif what == "settle":
            self._tell_all()
            send(self.agent, ("settled", name))
        else:
            self.close(name)

    def _tell_all(self) -> None:
        while not self.called.empty():
            what, name, *values = self.called.get()
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
