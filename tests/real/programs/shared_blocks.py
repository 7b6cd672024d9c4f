"""multiprocessing.shared_memory, Value and Array: what a process writes, the other reads."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.managers import SharedMemoryManager
from multiprocessing.shared_memory import ShareableList, SharedMemory
from typing import Any

import numpy

import dragon  # noqa: F401 - makes "dragon" a start method


def fill(name: str, value: int) -> None:
    block = SharedMemory(name)
    array: numpy.ndarray = numpy.ndarray(1000, dtype=numpy.int64, buffer=block.buf)
    array[:] = value
    del array
    block.close()


def fill_list(names: ShareableList[Any]) -> None:
    names[1] = "changed"
    names.shm.close()


def add(value: Any, array: Any) -> None:
    for index in range(len(array)):
        with value.get_lock():
            value.value += 1
        array[index] = index


def call(function: Any, *args: Any) -> None:
    process = multiprocessing.Process(target=function, args=args)
    process.start()
    process.join()
    assert process.exitcode == 0


def main() -> None:
    multiprocessing.set_start_method("dragon")
    block = SharedMemory(create=True, size=8000)
    call(fill, block.name, 7)
    array: numpy.ndarray = numpy.ndarray(1000, dtype=numpy.int64, buffer=block.buf)
    assert (array == 7).all()
    del array
    block.close()
    block.unlink()
    assert not os.path.exists(f"/dev/shm/{block.name}")
    with SharedMemoryManager() as manager:
        names = manager.ShareableList(["first", "the second", 3])
        call(fill_list, names)
        assert list(names) == ["first", "changed", 3]
        managed = manager.SharedMemory(100).name
    assert not os.path.exists(f"/dev/shm/{managed}")
    value, numbers = multiprocessing.Value("i", 0), multiprocessing.Array("d", 100)
    processes = [multiprocessing.Process(target=add, args=(value, numbers)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert value.value == 300
    assert numbers[:] == [float(index) for index in range(100)]
    print("ok")


if __name__ == "__main__":
    main()
