"""Claims of a user's programs on one node on something that they share.

Each claim is a small file in a private folder of the process that made it. It is valid while exactly that process is
alive: the claim of a killed process ends at once. No call waits for another process.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from dragon.files import write_bytes
from dragon.infrastructure.private import read_private
from dragon.runtime.node_memory import OwnFolder

__all__ = ["Claim"]


class Claim:
    """A claim of this process on the resource of that name, which every program of the user on this node must use
    alike.

    Raises ValueError for a name that is not an identifier, RunEndedError or OSError if no folder can be made for it.
    Programs with another TMPDIR, and those of other containers, are not seen.
    """

    def __init__(self, name: str) -> None:
        if not name.isidentifier():
            raise ValueError(f"{name!r} cannot be the name of a claim: use letters, digits and underscores")
        self._folder = OwnFolder(f"claim-{name}")

    def settle(self, decide: Callable[[list[bytes]], bytes]) -> bool:
        """Claim the bytes that `decide(claims of the other programs)` returns.

        No other program decides at the same time: returns False, and does nothing, if another one is just doing so.
        Raises OSError if the claim cannot be written, ValueError if it is closed.
        """
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
            with suppress(FileNotFoundError):  # the other program has just closed its claim
                found.append(read_private(file))
        return found

    def close(self) -> None:
        """Release the claim."""
        self._folder.close()
