"""What the standard library's documentation promises of shared memory.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.shared_memory.html.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import warnings
from multiprocessing.managers import SharedMemoryManager
from multiprocessing.shared_memory import ShareableList, SharedMemory
from typing import Any

import pytest

import dragon  # noqa: F401

LONG = 30
CONTEXT: Any = mp.get_context("dragon")


def test_shared_memory_has_a_name_and_a_size() -> None:
    """Creates a new shared memory block or attaches to an existing one. The size may be larger than requested."""
    memory = SharedMemory(create=True, size=10)
    try:
        other = SharedMemory(memory.name)
        memory.buf[:3] = b"abc"
        assert bytes(other.buf[:3]) == b"abc"
        assert other.size >= 10
        other.close()
        with pytest.raises(FileExistsError):
            SharedMemory(memory.name, create=True, size=1)
    finally:
        memory.close()
        memory.unlink()
    with pytest.raises(FileNotFoundError):
        SharedMemory(memory.name)


def test_shareable_lists() -> None:
    """Provides a mutable list-like object where all values stored within are stored in a shared memory block. They
    cannot change their overall length and do not support slicing."""
    items = ShareableList(["howdy", b"HoWdY", -273.154, 100, None, True, 42])
    try:
        other = ShareableList(name=items.shm.name)
        items[3] = 5
        assert (other[3], len(other), other.count(True), other.index(42)) == (5, 7, 1, 6)
        with pytest.raises(ValueError, match="exceeds"):
            items[0] = "much longer than before"
        other.shm.close()
    finally:
        items.shm.close()
        items.shm.unlink()


def test_shared_memory_managers() -> None:
    """Once a SharedMemoryManager's shutdown() has been called, all blocks that it made are released."""
    with SharedMemoryManager(ctx=CONTEXT) as manager:
        name = manager.SharedMemory(20).name
        assert manager.ShareableList(range(3))[2] == 2
    with warnings.catch_warnings(), contextlib.suppress(FileNotFoundError):
        SharedMemory(name)
        pytest.fail(f"{name} is still there")
