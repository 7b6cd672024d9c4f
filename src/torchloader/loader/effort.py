"""What a batch cost the process that made it: time, CPU time, and the time in which it could run and had no core."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

__all__ = ["Effort", "Meter"]

_SCHEDULING = "/proc/thread-self/schedstat"  # nanoseconds on a core, nanoseconds of waiting for one, slices


class Effort(NamedTuple):
    """Seconds: from the beginning to the end, of CPU time, and of waiting for a core."""

    seconds: float = 0.0
    cpu: float = 0.0
    delayed: float = 0.0

    def plus(self, other: Effort) -> Effort:
        """Both together."""
        return Effort(self.seconds + other.seconds, self.cpu + other.cpu, self.delayed + other.delayed)

    def since(self, other: Effort) -> Effort:
        """What lies between the other and this."""
        return Effort(self.seconds - other.seconds, self.cpu - other.cpu, self.delayed - other.delayed)

    @property
    def alone(self) -> float:
        """Seconds that it would have taken with a core at any time."""
        return max(self.cpu, self.seconds - self.delayed)


class Meter:
    """Reads the clocks of the thread that made it. A kernel that does not account for delays shows none."""

    def __init__(self) -> None:
        try:
            self._scheduling = os.open(_SCHEDULING, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._scheduling = -1

    def now(self) -> Effort:
        """The clocks: what lies between two readings is the difference."""
        delayed = 0.0
        if self._scheduling >= 0:
            delayed = int(os.pread(self._scheduling, 80, 0).split()[1]) * 1e-9
        return Effort(time.perf_counter(), time.process_time(), delayed)
