"""Files that are there when they are whole, and errors that name them."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["append_bytes", "whole_file", "write_bytes"]


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write what is to be at `path`: there is all of it once the block has ended, and nothing if it raised.

    A link is followed. What is no file, a pipe or a device, is written itself.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    target = path.resolve()
    target.parent.stat()  # where there is no such folder, the error names it
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_native_id()}")
    try:
        yield temporary
        temporary.rename(target)
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file. Raises OSError, which names it also where the disk is full, as Python's own does not."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def append_bytes(descriptor: int, data: bytes, path: Path) -> None:
    """Write all of it to an open file, at once. Raises OSError with the name of the file, `path`, also where there was
    room for a part: that part is there then."""
    try:
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
