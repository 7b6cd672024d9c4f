"""Loads a folder's files into a dictionary by processes of this node, in the background.

Until all files are loaded, keys that the dictionary lacks are read from the folder, by any process that has a handle.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from multiprocessing import TimeoutError as NotReadyError
from pathlib import Path
from typing import Any

from dragon.data.ddict import DDICT_MIN_SIZE, DDict
from dragon.infrastructure.policy import Policy
from dragon.native.pool import Pool
from dragon.native.semaphore import Semaphore

_BYTES_AT_ONCE = 64 * 2**20  # bytes of files that one task puts
_FILES_AT_ONCE = 256  # files that one task puts
_BESIDE = 4096  # bytes that an entry takes in addition to its value, at most
_LOADING_POLL_S = 0.005  # seconds between two checks by a process that did not start the loading


class Source:
    """A folder that is being loaded, for all processes that have a handle."""

    def __init__(self, folder: Path, tasks: int) -> None:
        self._folder = folder.absolute()
        self._tasks = tasks
        self._loaded = Semaphore(0)  # tasks that are done
        self._over = False

    def task_done(self) -> None:
        """Count a part of the files as loaded."""
        self._loaded.release()

    def is_over(self) -> bool:
        """Return whether all files are in the dictionary. If a loader failed it stays False."""
        self._over = self._over or self._loaded.get_value() >= self._tasks
        return self._over

    def wait(self, timeout: float | None) -> None:
        """Wait until all files are in the dictionary. Raises TimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.is_over():
            if deadline is not None and time.monotonic() > deadline:
                raise _not_loaded(self._folder, timeout)
            time.sleep(_LOADING_POLL_S)

    def files(self) -> dict[str, int]:
        """Return the sizes of the files in bytes, by their keys."""
        return dict(files_below(self._folder))

    def size(self, key: str) -> int | None:
        """Return the size of a key's file in bytes, None if there is none. Raises FileNotFoundError on a node without
        the folder."""
        file = self._file(key)
        return None if file is None else file.stat().st_size

    def read(self, key: str, part: slice | None = None) -> bytes | None:
        """Return the contents of a key's file, None if there is none. Raises FileNotFoundError on a node without the
        folder."""
        file = self._file(key)
        return None if file is None else file.read_bytes()[part or slice(None)]

    def _file(self, key: str) -> Path | None:
        if not self._folder.is_dir():
            raise FileNotFoundError(
                f"{key!r} is not loaded yet, and this node has no folder {self._folder} to read it from: "
                "wait_on_load() before the store is used here"
            )
        parts = key.split("/")
        file = self._folder.joinpath(*parts)
        return file if ".." not in parts and file.is_file() else None


class Loading:
    """Files that are being loaded. Keys are their paths relative to the folder, values their contents."""

    def __init__(self, ddict: DDict, folder: Path, files: list[tuple[str, int]], processes: int) -> None:
        self._folder = folder
        self._pool = Pool(processes, policy=Policy(placement=Policy.Placement.LOCAL))
        parts = list(_parts(files))
        self.source = Source(folder, len(parts))
        self._tasks = [self._pool.apply_async(_put_files, (ddict, self.source, folder, part)) for part in parts]
        self._pool.close()  # its processes end with the last task

    def wait(self, timeout: float | None = None) -> int:
        """Wait until all files are loaded and return their total size in bytes. Raises TimeoutError, and what a task
        raised."""
        deadline = None if timeout is None else time.monotonic() + timeout
        total = 0
        for task in self._tasks:
            try:
                total += task.get(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except NotReadyError:
                raise _not_loaded(self._folder, timeout) from None
        return total

    def is_over(self) -> bool:
        """Return whether all files are loaded. Raises what a task raised."""
        over = all(task.ready() for task in self._tasks)
        if over:
            self.wait()
        return over

    def bytes_so_far(self) -> int:
        """Return the number of bytes that are loaded."""
        return sum(task.get() for task in self._tasks if task.ready() and task.successful())


def files_below(folder: Path) -> list[tuple[str, int]]:
    """Return (path, size in bytes) of every file below a folder. Raises OSError if there is no such folder."""
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is not a folder")
    found = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return [(file.relative_to(folder).as_posix(), file.stat().st_size) for file in found]


def memory_for(
    files: list[tuple[str, int]],
    managers_per_node: int | None = 1,
    n_nodes: int | None = 1,
    *,
    policy: Any = None,
    managers_per_policy: int = 1,
    **others: Any,
) -> int:
    """Return the bytes that a dictionary needs for all files, with a margin because managers do not get equal
    shares."""
    managers = (managers_per_node or 1) * (n_nodes or 1)
    if isinstance(policy, (list, tuple)):
        managers = len(policy) * managers_per_policy
    largest = max((size for _, size in files), default=0)
    share = sum(size + _BESIDE for _, size in files) / managers
    return int(managers * (share * (1.25 if managers == 1 else 1.5) + 2 * largest + DDICT_MIN_SIZE))


def _parts(files: list[tuple[str, int]]) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for name, of_file in files:
        if part and (size + of_file > _BYTES_AT_ONCE or len(part) >= _FILES_AT_ONCE):
            yield part
            part, size = [], 0
        part.append(name)
        size += of_file
    if part:
        yield part


def _not_loaded(folder: Path, timeout: float | None) -> TimeoutError:
    return TimeoutError(f"{folder} was not loaded within {timeout} s")


def _put_files(ddict: DDict, source: Source, folder: Path, names: list[str]) -> int:
    """Load some files, as a task of the pool, and return their size in bytes. Keys that exist are not replaced."""
    values = {name: (folder / name).read_bytes() for name in names}
    for pending in [ddict.begin_put_new(name, value) for name, value in values.items()]:
        pending.result(ddict.timeout)
    source.task_done()
    return sum(map(len, values.values()))
