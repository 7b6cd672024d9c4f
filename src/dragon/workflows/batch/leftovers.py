"""Ends processes that a function task started and left running, in any process group or session.

A worker is a subreaper: an orphaned descendant becomes its child. So all processes that a task started and left are
descendants of the worker, and become its children when their parents end.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import psutil

from dragon import _core, cpython

_KILL_DELAY_S = 5.0  # seconds between SIGTERM and SIGKILL
_POLL_S = 0.005  # seconds
_MIN_POLL_S = 50e-6  # seconds in which no process can be started, so that no check is needed
_TRACKERS = ("loky.backend.resource_tracker", "joblib.externals.loky.backend.resource_tracker")


class Leaving(partial[Any]):
    """A call whose processes are left running."""


class Leftovers:
    """Ends the processes that tasks leave, after each task. Processes that existed at the beginning stay."""

    def __init__(self) -> None:
        self._open()
        self._others = self._children()

    def _open(self) -> None:
        try:
            self._list = os.open(f"/proc/self/task/{os.getpid()}/children", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
            self._list = -1

    def _children(self) -> set[int]:
        if self._list < 0 or os.stat("/proc/self/task").st_nlink > 3:  # each thread has its own
            return {child.pid for child in psutil.Process().children()}
        text = b""
        while more := os.pread(self._list, 4096, len(text)):
            text += more
        return set(map(int, text.split()))

    @contextmanager
    def of(self, call: Callable[..., Any]) -> Iterator[None]:
        """After the block, end the processes that the call left running, unless the call is a `Leaving`."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            if isinstance(call, Leaving):
                self._others = self._children()
            elif time.perf_counter() - begun > _MIN_POLL_S:
                self._end()

    def _end(self) -> None:
        """End new processes: with SIGTERM, and SIGKILL after 5 s. Returns when they have ended."""
        found = self._children()
        self._others &= found  # pids of ended processes may be reused
        if found <= self._others:
            return
        self._others |= _trackers() & found
        asked: set[int] = set()
        kill_at = time.monotonic() + _KILL_DELAY_S
        while left := [pid for pid in self._children() - self._others if _runs(pid)]:
            if time.monotonic() > kill_at:
                _signal(left, signal.SIGKILL)
            else:
                _signal(set(left) - asked, signal.SIGTERM)
            asked.update(left)
            time.sleep(_POLL_S)
        for pid in asked:
            with suppress(ChildProcessError):  # it was reaped by the code that started it
                os.waitpid(pid, os.WNOHANG)
        self._others |= self._children()  # zombies: their exit codes are left for the code that started them


def _trackers() -> set[int]:
    """Return the pids of the helpers of multiprocessing and loky, which serve this process to its end."""
    others = (vars(sys.modules[name])["_resource_tracker"]._pid for name in _TRACKERS if name in sys.modules)
    return cpython.helpers() | {pid for pid in others if pid is not None}


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _signal(pids: list[int] | set[int], number: int) -> None:
    for pid in pids:
        try:
            handle = _core.open_process(pid)
        except ProcessLookupError:
            continue
        try:
            if psutil.Process(pid).ppid() == os.getpid():
                _core.signal_process(handle, pid, number)
        except (ProcessLookupError, psutil.NoSuchProcess):
            pass
        finally:
            os.close(handle)
