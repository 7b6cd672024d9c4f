"""NumPy arrays through queues, pipes and pools: equal, and writable where they arrive."""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy

import dragon  # noqa: F401 - makes "dragon" a start method

ARRAYS = [
    numpy.arange(10),
    numpy.arange(1_000_000, dtype=numpy.float32).reshape(1000, 1000),
    numpy.arange(24).reshape(2, 3, 4)[:, ::2, 1:],
    numpy.asfortranarray(numpy.arange(12.0).reshape(3, 4)),
    numpy.zeros((0, 3)),
    numpy.array(7),
    numpy.array([(1, 2.5), (3, 4.5)], dtype=[("a", "i4"), ("b", "f8")]),
    numpy.array(["one", None, 3], dtype=object),
    numpy.arange(4, dtype=numpy.complex128) * 1j,
]


def double(incoming: Any, outgoing: Any) -> None:
    while (array := incoming.get()) is not None:
        array *= 2  # where it is
        outgoing.send(array)


def echo(array: numpy.ndarray) -> tuple[bool, numpy.ndarray]:
    return array.flags.writeable, array


def main() -> None:
    multiprocessing.set_start_method("dragon")
    queue = multiprocessing.Queue()
    for array in ARRAYS:
        queue.put(array)
    for array in ARRAYS:
        received = queue.get()
        assert received.dtype == array.dtype
        assert received.shape == array.shape
        assert numpy.array_equal(received, array)
        assert received.flags.writeable
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=double, args=(queue, theirs))
    process.start()
    for array in (ARRAYS[0], ARRAYS[1], ARRAYS[2]):
        queue.put(array)
        assert numpy.array_equal(ours.recv(), array * 2)
    queue.put(None)
    process.join()
    with multiprocessing.Pool(2) as pool:
        for (writable, received), array in zip(pool.map(echo, ARRAYS), ARRAYS, strict=True):
            assert writable
            assert received.flags.writeable
            assert numpy.array_equal(received, array)
    print("ok")


if __name__ == "__main__":
    main()
