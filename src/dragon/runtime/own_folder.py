"""A file of this process that other programs of the same user on this node find under the same name.

Each process has the file in its own private folder. It is valid while exactly that process, by id and start time, is
alive. The folder is removed by close(), else at the end of the process's run, by another program that searches for such
files, or by the next run.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
