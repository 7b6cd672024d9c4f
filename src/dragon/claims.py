"""What the programs of a user on one node have claimed of something that they share.

Each claim is a small file in a private folder of the process that made it. It counts while exactly that process lives,
which its id and its start time tell: of one that was killed it is gone at once. The file goes with close(), else with
the next look of another program, or the next run. Nothing here ever waits for another process.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Callable
from pathlib import Path

from dragon.files import write_bytes
from dragon.infrastructure.private import read_private
from dragon.runtime import folder as run_folder

__all__ = ["Claim"]


class Claim:
    """A claim of this process on what has the name, which every program of the user on this node has to use alike.

    Raises RunEndedError or OSError where there is no place for it. Programs with another TMPDIR, and those of other
    containers, are not seen.
    """

    def __init__(self, name: str) -> None:
        if not name.isidentifier():
            raise ValueError(f"{name!r} cannot be the name of what is claimed: take letters, digits and underscores")
        self._file = f"claim-{name}"
        self._folder = run_folder.make_folder()
        self._finalizer = weakref.finalize(self, _remove, self._folder, os.getpid())

    def settle(self, decide: Callable[[list[bytes]], bytes]) -> bool:
        """Claim what `decide` returns, given what the others have claimed. No other program does so at the same time:
        False, and nothing has happened, where one is just doing it. Raises OSError where it cannot be written."""
        if not self._finalizer.alive:
            raise ValueError("this claim is closed")
        base = os.open(self._folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                fcntl.flock(base, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            claimed = decide(self._others())
            unfinished = self._folder / f".{self._file}"
            write_bytes(unfinished, claimed)
            unfinished.chmod(0o600)
            unfinished.rename(self._folder / self._file)
            return True
        finally:
            os.close(base)

    def _others(self) -> list[bytes]:
        found = []
        for folder in run_folder.find_runs():
            owner = run_folder.owner_of(folder.name)
            if folder == self._folder or owner is None:
                continue
            try:
                claimed = read_private(folder / self._file)
            except FileNotFoundError:
                continue  # of a run, or on its way
            if run_folder.is_alive(owner):
                found.append(claimed)
            else:
                run_folder.remove_folder(folder)
        return found

    def close(self) -> None:
        """Give it back."""
        self._finalizer()


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # and not one that was forked from it
        run_folder.remove_folder(folder)
