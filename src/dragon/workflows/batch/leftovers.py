"""What a function task leaves running: the processes that it started, in whatever groups and sessions they are.

A worker is a subreaper: what has lost its parents below it is its child. So all that a task started and left is among
the worker's children, or below them, and comes there when these end.
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

from dragon import _core
from dragon.infrastructure import cpython

__all__ = ["Leaving", "Leftovers"]

_KILL_DELAY_S = 5.0  # seconds between the two signals
_POLL_S = 0.005
_MIN_POLL_S = 50e-6  # seconds in which no process can be started: it is not worth a look
_TRACKERS = ("loky.backend.resource_tracker", "joblib.externals.loky.backend.resource_tracker")


class Leaving(partial[Any]):
    """A call that may leave processes running."""


class Leftovers:
    """Ends what tasks leave, each time that one has ended. What was there at the beginning stays."""

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
        """What the call in the block leaves running is ended after it, unless the call was to leave it."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            if isinstance(call, Leaving):
                self._others = self._children()
            elif time.perf_counter() - begun > _MIN_POLL_S:
                self._end()

    def _end(self) -> None:
        """End what was not there before: asked first, killed after a while. Returns when it is over."""
        found = self._children()
        self._others &= found  # the others' ids may be used again
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
            with suppress(ChildProcessError):  # whoever started it has done so
                os.waitpid(pid, os.WNOHANG)
        self._others |= self._children()  # ended by themselves: their codes are for whoever asks


def _trackers() -> set[int]:
    """Helpers of multiprocessing and of its kind, which serve this process to its end."""
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
