"""The run's processes, and what those of each group use together.

Each process takes some 15 µs to read and to store. So that a node with a thousand processes does not spend more on
measuring than a node with ten, only as many are read at a time as fit into a small share of a core, those that were
not read for the longest time first.
"""

from __future__ import annotations

import os
import time
from collections import Counter

from dragon.agent.telemetry.seen import Seen
from dragon.infrastructure.metrics import PROCESS_STATES, Sample, tags_of
from dragon.runtime.protocol.processes import Known

_SHARE = 0.0025  # of a core, for reading; storing the values takes nearly as much again
_FIRST_CPU_S = 0.003  # seconds of CPU for the first reading
_LEAST, _MOST = 8, 2000
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_STATES = {b"R": 0, b"S": 1, b"I": 1, b"D": 2, b"T": 3, b"t": 3}
_OTHER = PROCESS_STATES.index("other")


class _Process:
    """A process when it was last read: its CPU time in seconds, and the time of the reading."""

    def __init__(self, process: Known) -> None:
        self.pid = process.pid
        # One node follows a group. On the others, its name is known only from its members' names: NAME-RANK.
        self.group = process.name.rpartition("-")[0] if process.group else ""
        self.tags = tags_of(puid=process.puid, name=process.name)
        self.read_at = 0.0
        self.cpu = 0.0
        self.percent = 0.0
        self.memory = 0

    def read(self) -> list[Sample]:
        """Return CPU use since the last call, memory and state. Raises OSError if the process has ended."""
        fd = os.open(f"/proc/{self.pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(fd, 1024)
        finally:
            os.close(fd)
        now = time.monotonic()
        fields = text[text.rindex(b")") + 2 :].split(b" ", 22)  # the name may contain spaces and parentheses
        cpu = (int(fields[11]) + int(fields[12])) / _TICKS
        self.memory = int(fields[21]) * _PAGE
        samples = [
            Sample("process_memory", self.memory, self.tags),
            Sample("process_state", _STATES.get(fields[0], _OTHER), self.tags),
        ]
        if self.read_at:  # CPU use is measured from one reading to the next
            self.percent = 100 * (cpu - self.cpu) / (now - self.read_at)
            samples.append(Sample("process_cpu_percent", self.percent, self.tags))
        self.read_at, self.cpu = now, cpu
        return samples


class ProcessSource:
    """As many live processes of the run as there is time for, among the first two thousand, in turn."""

    name = "the processes"

    def __init__(self) -> None:
        self._known: dict[int, _Process] = {}  # those to be read next come first
        self._asked_at = 0.0

    def read(self, seen: Seen) -> list[Sample]:
        """Return what the processes read this time use, and the last known sums of each group."""
        live = {process.puid: process for process in seen.processes[:_MOST]}
        self._known = {puid: process for puid, process in self._known.items() if puid in live}
        self._known |= {puid: _Process(process) for puid, process in live.items() if puid not in self._known}
        return [*self._read_those_in_turn(), *self._sums()]

    def _read_those_in_turn(self) -> list[Sample]:
        now = time.monotonic()
        share = _SHARE * (now - self._asked_at) if self._asked_at else _FIRST_CPU_S
        self._asked_at = now
        end = time.thread_time() + share
        samples = []
        for count, (puid, process) in enumerate(list(self._known.items())):
            if count >= _LEAST and time.thread_time() > end:
                break
            self._known[puid] = self._known.pop(puid)
            try:
                samples += process.read()
            except OSError:
                continue  # it has ended, or is about to
        return samples

    def _sums(self) -> list[Sample]:
        percent: Counter[str] = Counter()
        memory: Counter[str] = Counter()
        for process in self._known.values():
            if process.group and process.read_at:
                percent[process.group] += process.percent  # type: ignore[assignment]
                memory[process.group] += process.memory
        return [
            sample
            for group in memory
            for sample in (
                Sample("group_cpu_percent", percent[group], tags_of(group=group)),
                Sample("group_memory", memory[group], tags_of(group=group)),
            )
        ]
