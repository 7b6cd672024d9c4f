"""A host name of its own for a rehearsed node."""

from __future__ import annotations

import ctypes
import os
import socket
from pathlib import Path

from dragon.runtime.log import runtime_log

__all__ = ["own_host_name"]

_NEW_UTS, _NEW_USER = 0x04000000, 0x10000000


def own_host_name(name: str) -> bool:
    """Give this process and all that it starts a host name of their own; whether that was permitted.

    Where it is not, the log says so and the name stays. To be called before there are threads: a user without
    privileges gets the name in a user namespace of its own, which a process with several threads cannot enter.
    """
    error = _rename(name, _NEW_UTS)
    if error:
        # There is no way back out of a user namespace in which this process is nobody: another one tries it first.
        error = _in_child(name) or _rename(name, _NEW_USER | _NEW_UTS)
    if error:
        runtime_log("node").warning(
            "%s keeps the host name %s: a name of its own is not permitted here (%s)",
            name,
            socket.gethostname(),
            os.strerror(error),
        )
    return not error


def _in_child(name: str) -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(_rename(name, _NEW_USER | _NEW_UTS) & 0xFF)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _rename(name: str, namespaces: int) -> int:
    """Take that name in new namespaces; an error number, 0 if that worked."""
    user, group = os.geteuid(), os.getegid()
    error = _unshare(namespaces)
    if error:
        return error
    try:
        if namespaces & _NEW_USER:
            _stay(user, group)
        socket.sethostname(name)
    except OSError as refused:
        return refused.errno or 1
    return 0


def _unshare(namespaces: int) -> int:
    """Enter new namespaces; an error number, 0 if that worked. (Python has os.unshare() from 3.12 on.)"""
    libc = ctypes.CDLL(None, use_errno=True)
    return ctypes.get_errno() if libc.unshare(namespaces) else 0


def _stay(user: int, group: int) -> None:
    """Be the same user in the new user namespace as outside."""
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
