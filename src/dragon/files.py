"""Writes files atomically, with errors that name the file, and opens regular files only."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["append_bytes", "regular", "whole_file", "write_bytes"]


def regular(path: str, flags: int) -> int:
    """Open a file, as an `opener` of open(). Raises OSError for a pipe or a device, which could block for ever."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", path)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to. The file appears at `path` when the block has ended, and not at all if it raised.

    A link is followed. A pipe or device is written to directly. Raises OSError, for example for a missing folder.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    target = path.resolve()
    target.parent.stat()  # raises an error that names the folder if it does not exist
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_native_id()}")
    try:
        # With the permissions of the file that it replaces, from the beginning.
        mode = stat.S_IMODE(target.stat().st_mode) if target.is_file() else None
        os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o666 if mode is None else 0o600))
        yield temporary
        if mode is not None:
            temporary.chmod(mode)
        temporary.rename(target)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file. Raises OSError with the name of the file, also if the disk is full, when Python's own error has
    none."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def append_bytes(descriptor: int, data: bytes, path: Path) -> None:
    """Write all of `data` to an open file with one call.

    Raises OSError with the name of the file, `path`, also if there was room for a part only, which is then written.
    """
    try:
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
