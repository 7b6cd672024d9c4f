"""After each test: nothing that was forked from this process is left."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def forks() -> set[int]:
    """Processes that were forked from this one, run the same program, and have not ended."""
    own, found = Path("/proc/self/cmdline").read_bytes(), set()
    for task in Path("/proc/self/task").iterdir():
        for child in _read(task / "children").split():
            command = _read(Path(f"/proc/{int(child)}/cmdline"))
            # pytest-xdist writes the name of the test over the command.
            if command.startswith(b"[pytest-xdist") or (command and command == own):
                found.add(int(child))
    return found


def _read(path: Path) -> bytes:
    """What the system tells of a thread or process, nothing of one that has ended."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


@pytest.fixture(autouse=True)
def _no_fork_is_left() -> Iterator[None]:
    """Such as loading workers, and what they are forked from, which end whatever still refers to their loader."""
    before = forks()
    yield
    if forks() - before:
        gc.collect()  # an exception with its traceback is a cycle, which may have kept a loader
    deadline = time.monotonic() + 20
    while (left := forks() - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left
