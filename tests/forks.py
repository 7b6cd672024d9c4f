"""After each test: nothing that was forked from this process is left."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path

import pytest


def forks() -> set[int]:
    """Processes that were forked from this one, run the same program, and have not ended."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except FileNotFoundError:
            continue  # a thread that has ended
        for child in children:
            try:
                command = Path(f"/proc/{child}/cmdline").read_bytes()  # empty where it has ended
            except FileNotFoundError:
                continue
            # pytest-xdist writes the name of the test over the command.
            if command.startswith(b"[pytest-xdist") or (command and command == Path("/proc/self/cmdline").read_bytes()):
                found.add(int(child))
    return found


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
