"""Guarantees of the standard library's documentation for shared memory.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.shared_memory.html.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
import warnings
from collections.abc import Iterator
from multiprocessing.managers import SharedMemoryManager
from multiprocessing.shared_memory import ShareableList, SharedMemory
from typing import Any

import numpy
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


def test_a_shareable_list_is_shared_by_its_name() -> None:
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


def test_a_shared_memory_manager_releases_its_blocks_at_shutdown() -> None:
    """Once a SharedMemoryManager's shutdown() has been called, all blocks that it made are released."""
    with SharedMemoryManager(ctx=CONTEXT) as manager:
        name = manager.SharedMemory(20).name
        assert manager.ShareableList(range(3))[2] == 2
    with warnings.catch_warnings(), contextlib.suppress(FileNotFoundError):
        SharedMemory(name)
        pytest.fail(f"{name} is still there")


def write(name: str, data: bytes) -> None:
    memory = SharedMemory(name)
    memory.buf[: len(data)] = data
    memory.close()


def test_a_process_writes_into_memory_by_its_name(block: SharedMemory) -> None:
    """In this way, one process can create a shared memory block with a particular name and a different process can
    attach to that same shared memory block using that same name."""
    assert ended(start(write, block.name, b"howdy")) == 0
    assert bytes(block.buf[:5]) == b"howdy"


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


def test_each_block_has_a_name_of_its_own(block: SharedMemory) -> None:
    """When creating a new shared memory block, if None (the default) is supplied for the name, a novel name will be
    generated. name, size: read-only access to the unique name, and to the size in bytes, of the shared memory
    block."""
    other = SharedMemory(create=True, size=16)
    assert other.name != block.name
    other.close()
    other.unlink()
    for name in ("name", "size", "buf"):
        with pytest.raises(AttributeError):
            setattr(block, name, 1)


def test_the_size_is_ignored_when_attaching(block: SharedMemory) -> None:
    """When attaching to an existing shared memory block, the size parameter is ignored. buf: a memoryview of contents
    of the shared memory block."""
    other = SharedMemory(block.name, size=10**6)
    assert other.size == block.size
    assert isinstance(other.buf, memoryview)
    other.close()


def test_memory_remains_after_close(block: SharedMemory) -> None:
    """Note that calling close() does not cause the shared memory block itself to be destroyed."""
    other = SharedMemory(block.name)
    other.buf[0] = 7
    other.close()
    again = SharedMemory(block.name)
    assert again.buf[0] == 7
    again.close()


def test_memory_is_unlinked_and_closed_in_either_order() -> None:
    """Note: the last process relinquishing its hold on a shared memory block may call unlink() and close() in either
    order."""
    memory = SharedMemory(create=True, size=1)
    memory.unlink()
    memory.buf[0] = 1
    memory.close()
    with pytest.raises(FileNotFoundError):
        SharedMemory(memory.name)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="the argument `track` is there from Python 3.13 on")
def test_untracked_memory_remains_after_the_end_of_a_process(block: SharedMemory) -> None:
    """track, when True, registers the shared memory block with a resource tracker process. It should be set to False
    when there is already another process in place that does the bookkeeping."""
    assert ended(start(attach_untracked, block.name)) == 0
    SharedMemory(block.name).close()


def attach_untracked(name: str) -> None:
    SharedMemory(name, track=False).close()  # type: ignore[call-arg, unused-ignore]


def test_an_array_of_numpy_is_shared() -> None:
    """The following example demonstrates a practical use of the SharedMemory class with NumPy arrays, accessing the
    same numpy.ndarray from two distinct Python shells."""
    numbers = numpy.array([1, 1, 2, 3, 5, 8])
    memory = SharedMemory(create=True, size=numbers.nbytes)
    shared: Any = numpy.ndarray(numbers.shape, dtype=numbers.dtype, buffer=memory.buf)
    shared[:] = numbers[:]
    assert ended(start(set_last, memory.name)) == 0
    assert list(shared) == [1, 1, 2, 3, 5, 888]
    del shared
    memory.close()
    memory.unlink()


def set_last(name: str) -> None:
    memory = SharedMemory(name)
    numbers: Any = numpy.ndarray((6,), dtype=numpy.int64, buffer=memory.buf)
    numbers[-1] = 888
    del numbers
    memory.close()


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


def test_a_manager_of_memory_is_a_process_until_its_shutdown() -> None:
    """A call to start() on a SharedMemoryManager instance causes a new process to be started. To trigger the release of
    all shared memory blocks managed by that process, call shutdown() on the instance."""
    manager = SharedMemoryManager(ctx=CONTEXT)
    manager.start()
    memory, items = manager.SharedMemory(size=128), manager.ShareableList("alpha")
    assert memory.size >= 128
    assert list(items) == ["a", "l", "p", "h", "a"]
    process = manager._process
    manager.shutdown()
    assert not process.is_alive()
    for name in (memory.name, items.shm.name):
        with pytest.raises(FileNotFoundError):
            SharedMemory(name)


def test_other_processes_connect_to_a_manager_of_memory() -> None:
    """Refer to BaseManager for a description of the inherited address and authkey optional input arguments and how they
    may be used to connect to an existing SharedMemoryManager service from other processes."""
    box = CONTEXT.Queue()
    with SharedMemoryManager(("127.0.0.1", 0), b"key", ctx=CONTEXT) as manager:
        assert ended(start(create_there, manager.address, box)) == 0
        name = box.get(timeout=LONG)
        memory = SharedMemory(name)
        assert bytes(memory.buf[:5]) == b"howdy"
        memory.close()
    with pytest.raises(FileNotFoundError):
        SharedMemory(name)


def create_there(address: Any, box: Any) -> None:
    manager = SharedMemoryManager(address, b"key")
    manager.connect()
    memory = manager.SharedMemory(16)
    memory.buf[:5] = b"howdy"
    box.put(memory.name)
    memory.close()


# ---- lists


@pytest.fixture
def items() -> Iterator[Any]:
    items: Any = ShareableList(["howdy", b"HoWdY", -273.154, 100, None, True, 42])
    try:
        yield items
    finally:
        items.shm.close()
        items.shm.unlink()


def test_a_shareable_list_accepts_only_built_in_types(items: Any) -> None:
    """This constrains storable values to only the int, float, bool, str, bytes, and None built-in data types."""
    assert [type(item) for item in items] == [str, bytes, float, int, type(None), bool, int]
    with pytest.raises((KeyError, TypeError, ValueError)):
        items[0] = [1]


def test_the_length_of_a_shareable_list_is_fixed(items: Any) -> None:
    """These lists can not change their overall length (i.e. no append(), insert(), etc.) and do not support the dynamic
    creation of new ShareableList instances via slicing."""
    assert not hasattr(items, "append")
    assert not hasattr(items, "insert")
    with pytest.raises(TypeError):
        items[1:3]
    with pytest.raises(IndexError):
        items[7] = 1


def test_the_type_of_an_item_may_change(items: Any) -> None:
    """a[2] = 'dry ice': changing data types is supported as well. a[2] = 'larger than previously allocated storage
    space': ValueError: exceeds available storage for existing str; a[2] is still 'dry ice'."""
    items[2] = "dry ice"
    with pytest.raises(ValueError, match="exceeds available storage"):
        items[2] = "larger than previously allocated storage space"
    assert items[2] == "dry ice"


def test_count_and_index_of_a_shareable_list(items: Any) -> None:
    """Return the number of occurrences of value. Return first index position of value. Raise ValueError if value is not
    present."""
    assert (items.count(b"HoWdY"), items.count(b"howdy"), items.index(42)) == (1, 0, 6)
    with pytest.raises(ValueError, match="not in"):
        items.index("absent")


def test_a_shareable_list_has_the_attributes_shm_and_format(items: Any) -> None:
    """format: read-only attribute containing the struct packing format used by all currently stored values. shm: the
    SharedMemory instance where the values are stored."""
    assert items.format.startswith("8s8sdq")
    assert isinstance(items.shm, SharedMemory)
    with pytest.raises(AttributeError):
        items.format = ""


def test_a_process_changes_a_list_by_its_name(items: Any) -> None:
    """The following example depicts how one, two, or many processes may access the same ShareableList by supplying the
    name of the shared memory block behind it."""
    assert ended(start(change_by_name, items.shm.name)) == 0
    assert items[-1] == -999


def change_by_name(name: str) -> None:
    other: Any = ShareableList(name=name)
    other[-1] = -999
    other.shm.close()


def test_a_pickled_list_is_the_same_list(items: Any) -> None:
    """Instances of ShareableList may be pickled. Note, however, that they will share the same memory."""
    other = pickle.loads(pickle.dumps(items))
    items[3] = 5
    assert other[3] == 5
    other.shm.close()
