"""Reports what a process is doing, from the kernel's information."""

from __future__ import annotations

import os
import platform
from pathlib import Path

# The system calls in which processes wait: their numbers on x86-64 and on 64-bit ARM, and what they wait for.
_CALLS: dict[str, tuple[int, int, str]] = {
    "read": (0, 63, "data from {}"),
    "readv": (19, 65, "data from {}"),
    "write": (1, 64, "room in {}"),
    "writev": (20, 66, "room in {}"),
    "recvfrom": (45, 207, "data from {}"),
    "recvmsg": (47, 212, "data from {}"),
    "sendto": (44, 206, "room in {}"),
    "sendmsg": (46, 211, "room in {}"),
    "connect": (42, 203, "a connection by {}"),
    "accept": (43, 202, "a connection to {}"),
    "accept4": (288, 242, "a connection to {}"),
    "flock": (73, 32, "the lock on {}"),
    "fcntl": (72, 25, "the lock on {}"),
    "fsync": (74, 82, "{} to be on disk"),
    "fdatasync": (75, 83, "{} to be on disk"),
    "poll": (7, -1, "one of several descriptors"),
    "ppoll": (271, 73, "one of several descriptors"),
    "select": (23, -1, "one of several descriptors"),
    "pselect6": (270, 72, "one of several descriptors"),
    "epoll_wait": (232, -1, "one of several descriptors"),
    "epoll_pwait": (281, 22, "one of several descriptors"),
    "futex": (202, 98, "another thread, or another process by shared memory"),
    "wait4": (61, 260, "the end of a child process"),
    "waitid": (247, 95, "the end of a child process"),
    "nanosleep": (35, 101, "some time to pass"),
    "clock_nanosleep": (230, 115, "some time to pass"),
    "pause": (34, -1, "a signal"),
    "rt_sigsuspend": (130, 133, "a signal"),
    "rt_sigtimedwait": (128, 137, "a signal"),
}
_COLUMN = 1 if platform.machine() == "aarch64" else 0
_BY_NUMBER = {numbers[_COLUMN]: (name, numbers[2]) for name, numbers in _CALLS.items()}


def doing(pid: int) -> str:
    """Describe what the main thread of a process does or waits for. Returns "" if it has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
    if state == "R":
        return "it runs"
    if state == "T":
        return f"it is stopped (Ctrl-Z, SIGSTOP); `kill -CONT {pid}` continues it"
    if state == "t":
        return "it is stopped by a debugger"
    if state == "D":
        return "it waits for a disk or a network file system, and cannot be killed meanwhile" + _kernel_function(pid)
    return _call(pid) or "it waits" + (_kernel_function(pid) or ", the kernel does not show for what")


def _call(pid: int) -> str:
    """Describe the system call that the process is in; "" if this user may not see it."""
    try:
        words = Path(f"/proc/{pid}/syscall").read_text().split()
    except OSError:
        return ""
    if not words[0].isdigit():
        return ""
    name, what = _BY_NUMBER.get(int(words[0]), ("", ""))
    if not name:
        return f"it is in system call {words[0]}" + _kernel_function(pid)
    return f"it waits for {what.format(_descriptor(pid, int(words[1], 16)))} ({name})"


def _descriptor(pid: int, number: int) -> str:
    try:
        target = os.readlink(f"/proc/{pid}/fd/{number}")
    except OSError:
        return f"descriptor {number}"
    return f"descriptor {number}, {target}"


def _kernel_function(pid: int) -> str:
    try:
        function = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return ""
    return f" (in the kernel's {function})" if function not in ("", "0") else ""
