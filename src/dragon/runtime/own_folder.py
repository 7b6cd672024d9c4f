"""A file of this process that other programs of the user on this node have under the same name.

Each has it in a private folder of its own. It counts while exactly that process lives, which its id and its start time
tell. The folder goes with close(), else with the end of a run of the process, the next look of another program, or the
next run.
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

__all__ = ["OwnFolder"]

_POLL_S = 0.005


class OwnFolder:
    """A private folder for one file, which is to be made in it. Raises RunEndedError or OSError where there is no place
    for it."""

    def __init__(self, file: str) -> None:
        self._folder = run_folder.make_folder()
        self.file = self._folder / file
        self._finalizer = weakref.finalize(self, _remove, self._folder, os.getpid())

    @property
    def is_closed(self) -> bool:
        """Whether it was removed."""
        return not self._finalizer.alive

    def others(self) -> Iterator[Path]:
        """The files of other programs that live; the folders of others that had one are removed."""
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
        """Whether, after so many seconds at most, no other program is in such a block, for the time of this one."""
        base = os.open(self._folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            until = time.monotonic() + timeout
            while not (is_alone := _locked(base)) and time.monotonic() < until:
                time.sleep(_POLL_S)
            yield is_alone
        finally:
            os.close(base)

    def close(self) -> None:
        """Remove it."""
        self._finalizer()


def _locked(base: int) -> bool:
    try:
        fcntl.flock(base, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # and not one that was forked from it
        run_folder.remove_folder(folder)
