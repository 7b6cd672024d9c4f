"""Files and memory that the programs of a user on one node share while they run."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dragon.runtime.node_memory import NodeMemory, OwnFolder, Parts, Place, SnapshotGoneError

__all__ = ["NodeFile", "NodeMemory", "Parts", "Place", "SnapshotGoneError"]

_LOCK_TIMEOUT_S = 5.0  # seconds to wait for another program that is opening its file


class NodeFile:
    """A file that all programs of the user on this node which use its name share.

    Each program has it as a link in its own private folder, so that it exists until the last of them closes it or ends.
    The link of a killed program is removed when another program opens such a file, or by the next run. Programs with
    another TMPDIR, and those of other containers, have another file.

    Args:
        name: an identifier.
        size: the size in bytes; a new file is filled with zeros.

    Raises ValueError for an invalid name, RunEndedError or OSError if no folder can be made, TimeoutError if another
    program was stopped while it opened its file.
    """

    def __init__(self, name: str, size: int) -> None:
        if not name.isidentifier():
            raise ValueError(f"{name!r} cannot be the name of a file: use letters, digits and underscores")
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
        """The path of the file in this process's folder."""
        return self._folder.file

    def close(self) -> None:
        """Remove the file from this process's folder; other programs keep it."""
        self._folder.close()


def _linked(there: Path, here: Path) -> bool:
    with suppress(FileNotFoundError):  # the other program has just closed its file
        os.link(there, here, follow_symlinks=False)
        return True
    return False
