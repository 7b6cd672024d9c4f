"""Files that the programs of a user on one node have in common while they run."""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dragon import _core
from dragon.runtime import folder as run_folder

__all__ = ["NodeFile", "anonymous_memory"]

_LOCK_TIMEOUT_S = 5.0  # seconds for another program to come to its file
_POLL_S = 0.005  # seconds


class NodeFile:
    """A file that all programs of the user on this node which name it have in common.

    Each has it under a name in a private folder of its own, so that it is there until the last of them closes it or
    ends; what one that was killed has left goes with the next look of another program, or the next run. Programs with
    another TMPDIR, and those of other containers, have another file.

    Args:
        name: an identifier.
        size: bytes; the file is zero at first.

    Raises RunEndedError or OSError where there is no place for it, TimeoutError where another program that is just
    coming to its file was stopped.
    """

    def __init__(self, name: str, size: int) -> None:
        if not name.isidentifier():
            raise ValueError(f"{name!r} cannot be the name of a file: take letters, digits and underscores")
        folder = run_folder.make_folder()
        self.path = folder / f"shared-{name}"
        self._finalizer = weakref.finalize(self, _remove, folder, os.getpid())
        with _alone_in(folder.parent):
            if not any(_linked(other / self.path.name, self.path) for other in _living(folder)):
                file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                os.ftruncate(file, size)
                os.close(file)

    def close(self) -> None:
        """Have it no more; others still do."""
        self._finalizer()


def anonymous_memory(label: str) -> int:
    """Return the descriptor of new memory without a name, which /proc shows with the label. Another process of the user
    can open it as /proc/PID/fd/DESCRIPTOR. Raises OSError where the system has none."""
    return _core.anonymous_memory(label)


@contextmanager
def _alone_in(base: Path) -> Iterator[None]:
    """No other program comes to its file in the block."""
    folder = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > until:
                raise TimeoutError(
                    f"another program has had the lock of {base} for {_LOCK_TIMEOUT_S:.0f} s: is it stopped?"
                )
            time.sleep(_POLL_S)
        yield
    finally:
        os.close(folder)


def _living(own: Path) -> Iterator[Path]:
    """The folders of other programs that run; of those that were killed the folders are removed."""
    for folder in run_folder.find_runs():
        owner = run_folder.owner_of(folder.name)
        if folder == own or owner is None:
            continue
        if run_folder.is_alive(owner):
            yield folder
        elif any(folder.glob("shared-*")):
            run_folder.remove_folder(folder)


def _linked(there: Path, here: Path) -> bool:
    try:
        os.link(there, here, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # and not one that was forked from it
        run_folder.remove_folder(folder)
