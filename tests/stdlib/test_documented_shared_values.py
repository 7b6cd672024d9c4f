"""What the standard library's documentation promises of shared ctypes.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import ctypes
import multiprocessing as mp
from typing import Any

import pytest

import dragon  # noqa: F401

LONG = 30
CONTEXT: Any = mp.get_context("dragon")


def start(target: Any, *args: Any, **options: Any) -> Any:
    process = CONTEXT.Process(target=target, args=args, **options)
    process.start()
    return process


def ended(process: Any) -> Any:
    process.join(LONG)
    return process.exitcode


def test_values_have_a_lock_and_a_type() -> None:
    """By default the return value is actually a synchronized wrapper for the object. If lock is False then access to
    the returned object will not be automatically protected by a lock."""
    value = CONTEXT.Value("d", 3.5)
    with value.get_lock():
        value.value += 1
    assert value.value == 4.5
    assert value.get_obj().value == 4.5
    assert not hasattr(CONTEXT.Value("i", 1, lock=False), "get_lock")
    own = CONTEXT.Lock()
    assert CONTEXT.Value("i", 1, lock=own).get_lock() is own


def test_arrays_are_zeroed_or_initialised() -> None:
    """If size_or_initializer is an integer, then it determines the length of the array, and the array will be initially
    zeroed. Otherwise, it is a sequence which is used to initialize the array. An array of ctypes.c_char has value and
    raw attributes which allow one to use it to store and retrieve strings."""
    assert CONTEXT.Array("i", 3)[:] == [0, 0, 0]
    assert CONTEXT.Array("i", [1, 2])[:] == [1, 2]
    text = CONTEXT.Array("c", b"hello")
    assert (text.value, text.raw) == (b"hello", b"hello")


class Point(ctypes.Structure):
    _fields_ = (("x", ctypes.c_double), ("y", ctypes.c_double))


def test_structures_are_shared() -> None:
    """Structures and arrays of structures are allocated from shared memory (the example of the documentation)."""
    points = CONTEXT.Array(Point, [(1.875, -6.25), (-5.75, 2.0)])
    ended(start(square, points))
    assert [(point.x, point.y) for point in points] == [(3.515625, 39.0625), (33.0625, 4.0)]


def square(points: Any) -> None:
    for point in points:
        point.x **= 2
        point.y **= 2


def add(value: Any, times: int) -> None:
    for _ in range(times):
        with value.get_lock():
            value.value += 1


def test_a_value_is_changed_by_several_processes_under_its_lock() -> None:
    """Operations like += which involve a read and write are not atomic. So if, for instance, you want to
    atomically increment a shared value it is insufficient to just do counter.value += 1; you can do: with
    counter.get_lock(): counter.value += 1."""
    counter = CONTEXT.Value("i", 0)
    processes = [start(add, counter, 500) for _ in range(3)]
    assert [ended(process) for process in processes] == [0, 0, 0]
    assert counter.value == 1500


def test_a_lock_that_is_given_is_the_one() -> None:
    """If lock is a Lock or RLock object then that will be used to synchronize access to the value."""
    lock = CONTEXT.RLock()
    value = CONTEXT.Value("d", 1.5, lock=lock)
    numbers = CONTEXT.Array("h", 3, lock=lock)
    assert value.get_lock() is lock
    assert numbers.get_lock() is lock
    assert value.get_obj().value == 1.5
    assert list(numbers.get_obj()) == [0, 0, 0]
    with pytest.raises(AttributeError):
        CONTEXT.Value("d", 1.5, lock="no lock")


def test_an_array_of_characters_is_text() -> None:
    """Note that an array of ctypes.c_char has value and raw attributes which allow one to use it to store and
    retrieve strings."""
    text = CONTEXT.Array("c", b"hello")
    assert (text.value, text.raw) == (b"hello", b"hello")
    text.value = b"bye"
    assert (text.value, text.raw, text[1], text[:2]) == (b"bye", b"bye\0o", b"y", b"by")
    assert CONTEXT.Array(ctypes.c_char, 4).raw == bytes(4)


def test_an_array_is_a_sequence() -> None:
    """size_or_initializer is a sequence which is used to initialize the array and whose length determines the
    length of the array."""
    numbers = CONTEXT.Array("i", range(5))
    assert (len(numbers), numbers[-1], numbers[1:4], list(numbers)) == (5, 4, [1, 2, 3], [0, 1, 2, 3, 4])
    numbers[1:3] = [7, 8]
    assert list(numbers) == [0, 7, 8, 3, 4]
    with pytest.raises(IndexError):
        numbers[5] = 1
    with pytest.raises(TypeError):
        numbers[0] = "x"
