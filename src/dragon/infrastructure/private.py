"""Opens folders and files whose names other users can know.

Any user who knows a name can make a folder or a link of that name first, or after the original was removed. So what is
opened must belong to this user, be closed to all others, and not be a link.
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path


def _is_own(status: os.stat_result) -> bool:
    return status.st_uid == os.getuid() and not status.st_mode & 0o077


def is_private(folder: Path) -> bool:
    """Return whether it is a folder of this user that is closed to all others. Raises FileNotFoundError."""
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and _is_own(status)


def make_private(folder: Path) -> bool:
    """Make a private folder unless it exists. Returns whether it is private."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return is_private(folder)
    return True


def connect_within(folder: Path, name: str, connection: socket.socket) -> None:
    """Connect to a socket in a private folder. Raises PermissionError if the folder is not private, OSError."""
    connection.connect(str(folder / name))
    if not is_private(folder):  # checked afterwards: a folder that is private now was private before
        raise PermissionError(f"{folder} is not a private folder of yours, so {name!r} in it is not used")


def read_private(file: Path) -> bytes:
    """Return the contents of a private file. Raises PermissionError if it is not private, OSError if it is a link."""
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as opened:
        status = os.fstat(opened.fileno())
        if not _is_own(status):
            raise PermissionError(
                f"{file} belongs to user {status.st_uid} and has mode {stat.S_IMODE(status.st_mode):o}; it has to be "
                "yours and closed to others, so it is not opened"
            )
        return opened.read()
