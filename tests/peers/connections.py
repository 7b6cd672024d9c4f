"""Connections between processes of this machine, broken while both processes live."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from contextlib import suppress

import psutil

__all__ = ["break_connections"]

_GET_DESCRIPTOR = 438  # pidfd_getfd, which os does not have
_LIBC = ctypes.CDLL(None, use_errno=True)


def break_connections(pids: list[int]) -> int:
    """Break the connections between processes, and return their number. Processes that have ended have none."""
    ends = {}
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            for found in psutil.Process(pid).net_connections("tcp"):
                if found.raddr:
                    ends[found.laddr, found.raddr] = pid, found.fd
    broken = 0
    for (near, far), (pid, fd) in ends.items():
        if (far, near) in ends and near < far:
            with suppress(ProcessLookupError):
                broken += _break_connection(pid, fd, far)
    return broken


def _break_connection(pid: int, fd: int, peer: tuple[str, int]) -> bool:
    """Break a process's connection, and return True, or return False if it was already closed."""
    process = os.pidfd_open(pid)
    descriptor = _LIBC.syscall(_GET_DESCRIPTOR, process, fd, 0)
    os.close(process)
    if descriptor < 0:
        if ctypes.get_errno() == errno.EBADF:
            return False
        raise OSError(ctypes.get_errno(), "the agent's descriptors cannot be had")
    try:
        # By its number in this process it may be something else, which has taken its place.
        with socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as connection:
            if connection.getpeername() != tuple(peer):
                return False
            # Connected to nothing: what is in its buffers is lost.
            return bool(_LIBC.connect(connection.fileno(), bytes(16), 16) == 0)
    except OSError:
        return False
    finally:
        os.close(descriptor)
