"""Assert after each test that no forked process is left."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def forks() -> set[int]:
    """Return the live processes that were forked from this one and run the same program."""
    own, found = Path("/proc/self/cmdline").read_bytes(), set()
    for task in Path("/proc/self/task").iterdir():
        for child in _read(task / "children").split():
            command = _read(Path(f"/proc/{int(child)}/cmdline"))
            # pytest-xdist overwrites the command line with the name of the test.
            if command.startswith(b"[pytest-xdist") or (command and command == own):
                found.add(int(child))
    return found


def _read(path: Path) -> bytes:
    """Read a file of a process or thread under /proc; return nothing if the process has ended."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.fixture(autouse=True)
def _no_fork_is_left() -> Iterator[None]:
    """Assert that no forks are left, such as loading workers and their zygotes, which end with the last reference to
    their loader.
    """
    before = forks()
    yield
    if forks() - before:
        gc.collect()  # an exception with its traceback is a reference cycle, which may have kept a loader alive
    deadline = time.monotonic() + 20
    while (left := forks() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left
