"""What the programs of a user on one node have claimed of something that they share.

Each claim is a small file in a private folder of the process that made it. It counts while exactly that process lives:
of one that was killed it is gone at once. Nothing here ever waits for another process.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from dragon.files import write_bytes
from dragon.infrastructure.private import read_private
from dragon.runtime.own_folder import OwnFolder

__all__ = ["Claim"]


class Claim:
    """A claim of this process on what has the name, which every program of the user on this node has to use alike.

    Raises RunEndedError or OSError where there is no place for it. Programs with another TMPDIR, and those of other
    containers, are not seen.
    """

    def __init__(self, name: str) -> None:
        if not name.isidentifier():
            raise ValueError(f"{name!r} cannot be the name of what is claimed: take letters, digits and underscores")
        self._folder = OwnFolder(f"claim-{name}")

    def settle(self, decide: Callable[[list[bytes]], bytes]) -> bool:
        """Claim what `decide` returns, given what the others have claimed. No other program does so at the same time:
        False, and nothing has happened, where one is just doing it. Raises OSError where it cannot be written."""
        if self._folder.is_closed:
            raise ValueError("this claim is closed")
        with self._folder.alone(0) as is_alone:
            if not is_alone:
                return False
            claimed = decide(self._others())
            file = self._folder.file
            unfinished = file.with_name(f".{file.name}")
            write_bytes(unfinished, claimed)
            unfinished.chmod(0o600)
            unfinished.rename(file)
            return True

    def _others(self) -> list[bytes]:
        found = []
        for file in self._folder.others():
            with suppress(FileNotFoundError):  # its program has just closed it
                found.append(read_private(file))
        return found

    def close(self) -> None:
        """Give it back."""
        self._folder.close()
