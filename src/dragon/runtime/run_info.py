"""The description of a run, in its folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from dragon.files import write_bytes
from dragon.infrastructure.errors import RunEndedError
from dragon.infrastructure.private import read_private
from dragon.runtime.folder import INFO, Owner


class UnreadableRunError(RunEndedError):
    """A run's description does not have the format of this version."""


class FrontEnd(NamedTuple):
    """The `dragon` command that a run belongs to, and its machine."""

    process: Owner
    machine: str


class RunInfo(NamedTuple):
    """The description of a run, with which a process of this node can join it. Without a front end the owner is the
    user's program itself. All nodes of a run have the same `name`, which is empty for a run of one node, and the same
    start time `started`, in seconds since 1970."""

    owner: Owner
    agent: Owner
    arena_fd: int
    command: str = ""
    node: int = 0
    name: str = ""
    started: float = 0.0
    front_end: FrontEnd | None = None
    version: str = ""

    def write(self, folder: Path) -> None:
        """Write the description to the folder, atomically."""
        from dragon import __version__

        temporary = folder / f".{INFO}.{os.getpid()}"
        write_bytes(temporary, json.dumps(self._replace(version=__version__)).encode())
        temporary.chmod(0o600)
        temporary.rename(folder / INFO)

    @classmethod
    def read(cls, folder: Path) -> RunInfo:
        """Return the description in a folder."""
        from dragon.infrastructure.structs import msgspec  # not imported to write one

        try:
            return msgspec.json.decode(read_private(folder / INFO), type=cls)
        except OSError as error:
            raise RunEndedError(f"there is no run in {folder} (any more): {error}") from error
        except ValueError as error:
            raise UnreadableRunError(
                f"the run in {folder} cannot be read, probably because another version of the package started it: use "
                f"that version for it ({error})"
            ) from error


def run_name(folder: Path, info: RunInfo) -> str:
    """Return the name of a run, which is the same on all its nodes."""
    return info.name or folder.name.rpartition("-")[2]
