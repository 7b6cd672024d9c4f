"""Whether a process can be forked without harm to its child, after it has imported a program."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["unsafe_to_fork"]

_THREADS_END_WITHIN_S = 0.2  # seconds
_FORK_ENDS_WITHIN_S = 10.0  # seconds
# jemalloc's thread, which pyarrow starts, returns memory to the system. jemalloc prepares itself for each fork.
_ALLOWING_FORKS = {"jemalloc_bg_thd"}


def unsafe_to_fork() -> str:
    """Return why a fork of this process could hang or break its child; "" if it could not."""
    if any(os.path.realpath(f"/proc/self/fd/{fd}").startswith("/dev/nvidia") for fd in os.listdir("/proc/self/fd")):
        return "opened a GPU"
    if not _threads():
        return ""
    # Some libraries (OpenBLAS) end their threads before a fork and start them again when needed: try it.
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    if not _ends(pid):
        return f"registered functions for forks that do not return within {_FORK_ENDS_WITHIN_S:g} s in a child"
    # A joined thread may still be visible for a moment.
    deadline = time.monotonic() + _THREADS_END_WITHIN_S
    while (left := _threads()) and time.monotonic() < deadline:
        time.sleep(0.001)
    if not left:
        return ""
    what = "a thread that outlives" if len(left) == 1 else f"{len(left)} threads that outlive"
    return f"started {what} a fork ({', '.join(sorted(set(left)))})"


def _threads() -> list[str]:
    """Return the names of this process's other threads, except for those of libraries that allow forks."""
    own, others = "", []
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        if task.name == str(os.getpid()):
            own = name
        elif name not in _ALLOWING_FORKS:
            others.append(name)
    for _ in range(min(others.count(own), _threads_of_numexpr())):
        others.remove(own)
    return others


def _threads_of_numexpr() -> int:
    """Return how many threads numexpr has, which pandas and PyTables import. They have no name of their own.

    numexpr starts new ones when it is first called in a child.
    """
    numexpr: Any = sys.modules.get("numexpr")
    threads = int(numexpr.get_num_threads()) if hasattr(numexpr, "get_num_threads") else 1
    return threads if threads > 1 else 0


def _ends(pid: int) -> bool:
    """Wait for a child that only ends. Returns False, and kills it, if it does not."""
    deadline = time.monotonic() + _FORK_ENDS_WITHIN_S
    while time.monotonic() < deadline:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return True
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False
