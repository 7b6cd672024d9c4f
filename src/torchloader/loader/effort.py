"""The cost of a batch for the process that made it: elapsed time, CPU time, and time spent waiting for a core."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

__all__ = ["Effort", "Meter"]

_SCHEDULING = "/proc/thread-self/schedstat"  # nanoseconds on a core, nanoseconds of waiting for one, slices


class Effort(NamedTuple):
    """Elapsed seconds, seconds of CPU time, and seconds in which the process was runnable but had no core."""

    seconds: float = 0.0
    cpu: float = 0.0
    delayed: float = 0.0

    def plus(self, other: Effort) -> Effort:
        """Return the sum of both efforts."""
        return Effort(self.seconds + other.seconds, self.cpu + other.cpu, self.delayed + other.delayed)

    def since(self, other: Effort) -> Effort:
        """Return this effort minus an earlier one."""
        return Effort(self.seconds - other.seconds, self.cpu - other.cpu, self.delayed - other.delayed)

    @property
    def alone(self) -> float:
        """The seconds that it would have taken with a free core at any time."""
        return max(self.cpu, self.seconds - self.delayed)


class Meter:
    """Reads the clocks of the thread that made it. `delayed` is 0 where the kernel does not account for it."""

    def __init__(self) -> None:
        try:
            self._scheduling = os.open(_SCHEDULING, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._scheduling = -1

    def now(self) -> Effort:
        """Return the clocks of this moment; use the difference of two readings."""
        delayed = 0.0
        if self._scheduling >= 0:
            delayed = int(os.pread(self._scheduling, 80, 0).split()[1]) * 1e-9
        return Effort(time.perf_counter(), time.process_time(), delayed)
