"""Guarantees of the standard library's documentation for shared memory.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.shared_memory.html.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from multiprocessing.managers import SharedMemoryManager
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import pytest
from documented import CONTEXT, LONG, ended, start


@pytest.fixture
def block() -> Iterator[SharedMemory]:
    memory = SharedMemory(create=True, size=16)
    try:
        yield memory
    finally:
        memory.close()
        memory.unlink()


def test_a_process_accesses_memory_that_it_receives(block: SharedMemory) -> None:
    """This style of shared memory permits distinct processes to potentially read and write to a common (or shared)
    region of volatile memory. (The object can be an argument.)"""
    assert ended(start(write_into, block, b"howdy")) == 0
    assert bytes(block.buf[:5]) == b"howdy"


def write_into(memory: SharedMemory, data: bytes) -> None:
    memory.buf[: len(data)] = data
    memory.close()


def test_memory_remains_after_the_end_of_its_creator() -> None:
    """As a resource for sharing data across processes, shared memory blocks may outlive the original process that
    created them."""
    box = CONTEXT.Queue()
    assert ended(start(create, box)) == 0
    memory = SharedMemory(box.get(timeout=LONG))
    assert bytes(memory.buf[:5]) == b"howdy"
    memory.close()
    memory.unlink()


def create(box: Any) -> None:
    memory = SharedMemory(create=True, size=16)
    memory.buf[:5] = b"howdy"
    box.put(memory.name)
    memory.close()


@pytest.mark.skipif(sys.version_info < (3, 13), reason="the argument `track` is there from Python 3.13 on")
def test_untracked_memory_remains_after_the_end_of_a_process(block: SharedMemory) -> None:
    """track, when True, registers the shared memory block with a resource tracker process. It should be set to False
    when there is already another process in place that does the bookkeeping."""
    assert ended(start(attach_untracked, block.name)) == 0
    SharedMemory(block.name).close()


def attach_untracked(name: str) -> None:
    SharedMemory(name, track=False).close()  # type: ignore[call-arg, unused-ignore]


# ---- managers


def test_work_is_divided_over_a_list() -> None:
    """Divide the work among two processes, storing partial results in sl. p1 = Process(target=do_work, args=(sl, 0,
    1000))."""
    with SharedMemoryManager(ctx=CONTEXT) as manager:
        items = manager.ShareableList(range(20))
        processes = [start(double, items, 0, 10), start(double, items, 10, 20)]
        assert [ended(process) for process in processes] == [0, 0]
        assert sum(items) == 2 * sum(range(20))


def double(items: Any, first: int, last: int) -> None:
    for index in range(first, last):
        items[index] *= 2


def test_a_manager_of_memory_serves_other_processes_until_its_shutdown() -> None:
    """A call to start() on a SharedMemoryManager instance causes a new process to be started. Other processes connect
    to it by its address and authkey. To trigger the release of all shared memory blocks managed by that process, call
    shutdown() on the instance."""
    box = CONTEXT.Queue()
    manager = SharedMemoryManager(("127.0.0.1", 0), b"key", ctx=CONTEXT)
    manager.start()
    assert list(manager.ShareableList("alpha")) == ["a", "l", "p", "h", "a"]
    assert ended(start(create_there, manager.address, box)) == 0
    name, process = box.get(timeout=LONG), manager._process
    memory = SharedMemory(name)
    assert bytes(memory.buf[:5]) == b"howdy"
    memory.close()
    manager.shutdown()
    assert not process.is_alive()
    with pytest.raises(FileNotFoundError):
        SharedMemory(name)


def create_there(address: Any, box: Any) -> None:
    manager = SharedMemoryManager(address, b"key")
    manager.connect()
    memory = manager.SharedMemory(16)
    memory.buf[:5] = b"howdy"
    box.put(memory.name)
    memory.close()
