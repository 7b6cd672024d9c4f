"""libpmix through ctypes: the part of its server interface that a job needs (PMIx Standard 4.1, chapter 17)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import CFUNCTYPE, POINTER, c_bool, c_char, c_char_p, c_int, c_size_t, c_uint16, c_uint32, c_void_p
from typing import Any

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
