"""Bytes that are once in the memory of a node, for all of its processes.

They lie in a file without a name, which is there as long as a process has it open or mapped: nothing is left behind by
processes that are killed, and the size of /dev/shm is no limit.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

from dragon import _core

__all__ = ["NodeMemory", "Parts", "Place", "SnapshotGoneError"]

_ALIGNMENT = 64  # of each part, as arrays have it
_AT_ONCE = 256 * 1024  # bytes that are compared at a time: they stay in the processor's cache

# Process, descriptor and inode of a file, and where in it each part begins and ends.
Place = tuple[int, int, int, list[tuple[int, int]]]


class NodeMemory:
    """Parts of memory as they were when this was made. Raises OSError where the system has no memory for it."""

    def __init__(self, parts: Sequence[memoryview]) -> None:
        self.places: list[tuple[int, int]] = []
        self._fd = _core.anonymous_memory("snapshot")
        end = 0
        for part in parts:
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + part.nbytes
            self._write(part, start)
            self.places.append((start, end))
        os.ftruncate(self._fd, max(end, 1))

    def _write(self, part: memoryview, start: int) -> None:
        written = 0
        while written < part.nbytes:
            written += os.pwrite(self._fd, part[written:], start + written)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def has(self, parts: Sequence[memoryview]) -> bool:
        """Whether these are the parts, byte for byte."""
        return [part.nbytes for part in parts] == [end - start for start, end in self.places] and all(
            self._has(part, start) for part, (start, _) in zip(parts, self.places, strict=True)
        )

    def _has(self, part: memoryview, start: int) -> bool:
        return all(
            os.pread(self._fd, len(some), start + done) == some
            for done in range(0, part.nbytes, _AT_ONCE)
            for some in (part[done : done + _AT_ONCE].tobytes(),)
        )

    @property
    def place(self) -> Place:
        """What Parts() finds them by, in any process of this node, for as long as this is there."""
        return os.getpid(), self._fd, os.fstat(self._fd).st_ino, self.places


class SnapshotGoneError(LookupError):
    """What a snapshot had in memory was given up by the process that made it."""


class Parts:
    """Parts as another process sees them. Raises SnapshotGoneError where the process that made them, or its NodeMemory,
    is gone."""

    def __init__(self, place: Place) -> None:
        process, descriptor, inode, self._places = place
        name = f"/proc/{process}/fd/{descriptor}"
        try:
            self._fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise SnapshotGoneError(f"{name} was closed, or its process has ended") from None
        if os.fstat(self._fd).st_ino != inode:
            raise SnapshotGoneError(f"{name} is another file now")

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def views(self) -> list[memoryview]:
        """All of them, writable: of pages that are written to these views get a copy of their own."""
        whole = memoryview(mmap.mmap(self._fd, 0, access=mmap.ACCESS_COPY))
        return [whole[start:end] for start, end in self._places]
