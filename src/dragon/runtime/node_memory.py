"""Data that exists once in the memory of a node, for all of its processes.

It is in a file without a name, which exists as long as a process has it open or mapped: processes that are killed leave
nothing behind, and the size of /dev/shm is no limit. The file begins with the number of parts, and the start and end of
each.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dragon import _core
from dragon.runtime import folder as run_folder

_POLL_S = 0.005


class OwnFolder:
    """A private folder for one file, which the caller makes."""

    def __init__(self, file: str) -> None:
        self._folder = run_folder.make_folder()
        self.file = self._folder / file
        self._finalizer = weakref.finalize(self, _remove, self._folder, os.getpid())

    @property
    def is_closed(self) -> bool:
        """Whether the folder was removed."""
        return not self._finalizer.alive

    def others(self) -> Iterator[Path]:
        """Yield the files of other live programs; the folders of those that have ended are removed."""
        for folder in run_folder.find_runs():
            owner, file = run_folder.owner_of(folder.name), folder / self.file.name
            if folder == self._folder or owner is None or not file.exists():
                continue
            if run_folder.is_alive(owner):
                yield file
            else:
                run_folder.remove_folder(folder)

    @contextmanager
    def alone(self, timeout: float) -> Iterator[bool]:
        """Wait at most `timeout` seconds until no other program is in such a block."""
        base = os.open(self._folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            until = time.monotonic() + timeout
            while not (is_alone := _locked(base)) and time.monotonic() < until:
                time.sleep(_POLL_S)
            yield is_alone
        finally:
            os.close(base)

    def close(self) -> None:
        """Remove the folder."""
        self._finalizer()


def _locked(base: int) -> bool:
    try:
        fcntl.flock(base, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child
        run_folder.remove_folder(folder)


_ALIGNMENT = 64  # bytes, of each part, as for arrays
_AT_ONCE = 256 * 1024  # bytes that are compared at a time, so that they stay in the processor's cache
_WORD = 8  # bytes of a number in the header

# Process, descriptor and inode of a file.
Place = tuple[int, int, int]


class _Memory:
    _fd: int

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    @property
    def place(self) -> Place:
        """The argument for Parts() in any process of this node, valid as long as this object exists."""
        return os.getpid(), self._fd, os.fstat(self._fd).st_ino


class NodeMemory(_Memory):
    """A copy of parts of memory, made when the object is made. Raises OSError if the system has no memory for it."""

    def __init__(self, parts: Sequence[memoryview]) -> None:
        places: list[tuple[int, int]] = []
        end = _WORD * (1 + 2 * len(parts))
        for part in parts:
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + part.nbytes
            places.append((start, end))
        self._places, self.size = places, end
        self._fd = _core.anonymous_memory("snapshot")
        numbers = [len(parts), *(number for place in places for number in place)]
        self._write(memoryview(struct.pack(f"={len(numbers)}Q", *numbers)), 0)
        for part, (start, _) in zip(parts, places, strict=True):
            self._write(part, start)
        os.ftruncate(self._fd, end)

    def _write(self, part: memoryview, start: int) -> None:
        written = 0
        while written < part.nbytes:
            written += os.pwrite(self._fd, part[written:], start + written)

    def has(self, parts: Sequence[memoryview]) -> bool:
        """Return whether the copy equals these parts, byte for byte."""
        return [part.nbytes for part in parts] == [end - start for start, end in self._places] and all(
            self._has(part, start) for part, (start, _) in zip(parts, self._places, strict=True)
        )

    def _has(self, part: memoryview, start: int) -> bool:
        return all(
            os.pread(self._fd, len(some), start + done) == some
            for done in range(0, part.nbytes, _AT_ONCE)
            for some in (part[done : done + _AT_ONCE].tobytes(),)
        )


class SnapshotGoneError(LookupError):
    """The memory of a snapshot was released by the process that made it."""


class Parts(_Memory):
    """The parts of a NodeMemory in another process."""

    def __init__(self, place: Place) -> None:
        process, descriptor, inode = place
        name = f"/proc/{process}/fd/{descriptor}"
        try:
            self._fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # also if the process id now belongs to another user's process
            raise SnapshotGoneError(f"{name} was closed, or its process has ended") from None
        if os.fstat(self._fd).st_ino != inode:
            raise SnapshotGoneError(f"{name} is another file now")

    @property
    def size(self) -> int:
        """The size in bytes of all parts and the header."""
        return os.fstat(self._fd).st_size

    def views(self) -> list[memoryview]:
        """Return all parts as writable memory: pages that are written to are copied, the original stays unchanged."""
        whole = memoryview(mmap.mmap(self._fd, 0, access=mmap.ACCESS_COPY))
        (count,) = struct.unpack_from("=Q", whole)
        places = struct.iter_unpack("=QQ", whole[_WORD : _WORD * (1 + 2 * count)])
        return [whole[start:end] for start, end in places]
