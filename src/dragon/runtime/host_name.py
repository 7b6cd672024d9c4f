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
    error = _unshare(_NEW_UTS)
    if error:
        user, group = os.geteuid(), os.getegid()
        error = _unshare(_NEW_USER | _NEW_UTS)
        if not error:
            error = _stay(user, group)
    if not error:
        try:
            socket.sethostname(name)
        except OSError as refused:
            error = refused.errno or -1
    if error:
        runtime_log("node").warning(
            "%s keeps the host name %s: a name of its own is not permitted here (%s)",
            name,
            socket.gethostname(),
            os.strerror(error),
        )
    return not error


def _unshare(namespaces: int) -> int:
    """Enter new namespaces; an error number, 0 if that worked. (Python has os.unshare() from 3.12 on.)"""
    libc = ctypes.CDLL(None, use_errno=True)
    return ctypes.get_errno() if libc.unshare(namespaces) else 0


def _stay(user: int, group: int) -> int:
    """Be the same user in the new user namespace as outside; an error number, 0 if that worked."""
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    except OSError as error:
        return error.errno or -1
    return 0
