"""Detects whether a signal was sent to this process only or to its process group, which the system does not report.

A child in the same group blocks these signals, and reports which of them it receives.
"""

from __future__ import annotations

import os
import select
import signal
import struct
import time
from collections.abc import Iterable

from dragon.signals import end_with_parent

_TOLD = struct.Struct("=id")
_GROUP_SIGNAL_S = 0.05  # seconds within which a signal to a group is pending in all of its processes
_BUSY_S = 10.0  # seconds that the child may take, on a busy machine, to report a signal that is pending in it


class Witness:
    """Observes signals until it is closed. It must be made while this process blocks the signals, and has no
    threads."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._told, bell = os.pipe()
        self._times: dict[int, float] = {}
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _look_on(parent, bell, set(numbers))
            finally:
                os._exit(0)
        os.close(bell)

    def time_of(self, number: int) -> float | None:
        """Return when the group received a signal that this process has just received, in seconds since the system's
        start; None if only this process received it."""
        waiting = select.poll()
        waiting.register(self._told, select.POLLIN)
        deadline = time.monotonic() + _BUSY_S
        while number not in self._times:
            idle = self._is_idle(number)
            if not waiting.poll(_GROUP_SIGNAL_S * 1000):
                if (idle and self._is_idle(number)) or time.monotonic() > deadline:
                    break
                continue
            data = os.read(self._told, _TOLD.size)
            if not data:
                break
            told, when = _TOLD.unpack(data)
            self._times[told] = when
        return self._times.pop(number, None)

    def _is_idle(self, number: int) -> bool:
        """Return whether the child sleeps and that signal is not pending in it, so that it has nothing to report."""
        try:
            with open(f"/proc/{self._pid}/status") as status:
                fields = dict(line.split(":\t", 1) for line in status)
        except (FileNotFoundError, ProcessLookupError):
            return True  # the child was killed
        return fields["State"].startswith("S") and not int(fields["ShdPnd"], 16) >> (number - 1) & 1

    def close(self) -> None:
        """End the child process."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._told)


def _look_on(parent: int, bell: int, numbers: set[int]) -> None:
    end_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        return
    while True:
        number = signal.sigwait(numbers)
        os.write(bell, _TOLD.pack(number, time.clock_gettime(time.CLOCK_BOOTTIME)))
