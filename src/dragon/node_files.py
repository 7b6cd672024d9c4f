"""Files and memory that the programs of a user on one node have in common while they run."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dragon.runtime.node_memory import NodeMemory, Parts, Place, SnapshotGoneError
from dragon.runtime.own_folder import OwnFolder

__all__ = ["NodeFile", "NodeMemory", "Parts", "Place", "SnapshotGoneError"]

_LOCK_TIMEOUT_S = 5.0  # seconds for another program to come to its file


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
        self._folder = OwnFolder(f"shared-{name}")
        with self._folder.alone(_LOCK_TIMEOUT_S) as is_alone:
            if not is_alone:
                base = self.path.parent.parent
                raise TimeoutError(
                    f"another program has held the lock of {base} for {_LOCK_TIMEOUT_S:.0f} s: is it stopped?"
                )
            if not any(_linked(file, self.path) for file in self._folder.others()):
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                os.ftruncate(descriptor, size)
                os.close(descriptor)

    @property
    def path(self) -> Path:
        """Where this process has it."""
        return self._folder.file

    def close(self) -> None:
        """Have it no more; others still do."""
        self._folder.close()


def _linked(there: Path, here: Path) -> bool:
    with suppress(FileNotFoundError):  # its program has just closed it
        os.link(there, here, follow_symlinks=False)
        return True
    return False
