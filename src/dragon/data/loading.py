"""A folder's files put into a dictionary by processes of this node, while the one that began it goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from multiprocessing import TimeoutError as NotReadyError
from pathlib import Path
from typing import Any

from dragon.data.ddict import DDICT_MIN_SIZE, DDict
from dragon.infrastructure.policy import Policy
from dragon.native.pool import Pool

__all__ = ["Loading", "files_below", "memory_for"]

_BYTES_AT_ONCE = 64 * 2**20  # of files that one task puts
_FILES_AT_ONCE = 256
_BESIDE = 4096  # bytes that an entry takes beside its value at most


class Loading:
    """Files on their way. Their keys are their paths below the folder, their values what is in them."""

    def __init__(self, ddict: DDict, folder: Path, files: list[tuple[str, int]], processes: int) -> None:
        self._folder = folder
        self._pool = Pool(processes, policy=Policy(placement=Policy.Placement.LOCAL))
        self._tasks = [self._pool.apply_async(_put_files, (ddict, folder, part)) for part in _parts(files)]
        self._pool.close()  # its processes end with the last task

    def wait(self, timeout: float | None = None) -> int:
        """Wait until all is loaded; its bytes. Raises TimeoutError, and what a task raised."""
        deadline = None if timeout is None else time.monotonic() + timeout
        total = 0
        for task in self._tasks:
            try:
                total += task.get(None if deadline is None else max(0.0, deadline - time.monotonic()))
            except NotReadyError:
                raise TimeoutError(f"{self._folder} was not loaded within {timeout} s") from None
        return total

    def is_over(self) -> bool:
        """Whether all is loaded. Raises what a task raised."""
        over = all(task.ready() for task in self._tasks)
        if over:
            self.wait()
        return over

    def bytes_so_far(self) -> int:
        """Bytes that were loaded."""
        return sum(task.get() for task in self._tasks if task.ready() and task.successful())


def files_below(folder: Path) -> list[tuple[str, int]]:
    """The path and the size of every file. Raises OSError where there is no such folder."""
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
    """Bytes of a dictionary that takes them all, although its managers do not get equal shares."""
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


def _put_files(ddict: DDict, folder: Path, names: list[str]) -> int:
    """A task; the bytes that it put."""
    values = {name: (folder / name).read_bytes() for name in names}
    ddict.put_many(values)
    return sum(map(len, values.values()))
