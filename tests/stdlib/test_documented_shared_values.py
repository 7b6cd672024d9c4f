"""Guarantees of the standard library's documentation for shared ctypes.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import multiprocessing.sharedctypes
import multiprocessing.synchronize
from typing import TYPE_CHECKING, Any

import pytest
from documented import CONTEXT, ended, start

if TYPE_CHECKING:
    from conftest import Site


def test_values_and_arrays_have_a_lock() -> None:
    """By default the return value is actually a synchronized wrapper for the object. If lock is True (the default) then
    a new recursive lock object is created to synchronize access to the value. If lock is a Lock or RLock object then
    that will be used. If lock is False then access to the returned object will not be protected by a lock."""
    value, own = CONTEXT.Value("d", 3.5), CONTEXT.Lock()
    assert isinstance(value.get_lock(), mp.synchronize.RLock)
    with value.get_lock(), value.get_lock():
        value.value += 1
    assert (value.value, value.get_obj().value) == (4.5, 4.5)
    assert not hasattr(CONTEXT.Value("i", 1, lock=False), "get_lock")
    assert CONTEXT.Value("i", 1, lock=own).get_lock() is own
    numbers = CONTEXT.Array("h", 3, lock=own)
    assert (numbers.get_lock() is own, list(numbers.get_obj())) == (True, [0, 0, 0])
    with pytest.raises(AttributeError):
        CONTEXT.Value("d", 1.5, lock="no lock")


class Point(ctypes.Structure):
    _fields_ = (("x", ctypes.c_double), ("y", ctypes.c_double))


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


def test_arguments_are_passed_to_the_constructor_of_the_type() -> None:
    """typecode_or_type determines the type of the returned object: it is either a ctypes type or a one character
    typecode of the kind used by the array module. *args is passed on to the constructor for the type."""
    point = CONTEXT.Value(Point, 1, 2)
    assert (point.x, point.y) == (1, 2)
    assert CONTEXT.Value(ctypes.c_short, 7).value == 7
    assert CONTEXT.Value("h", 7).value == 7


@pytest.mark.parametrize(
    ("plain", "shared"),
    [
        (ctypes.c_double(2.4), lambda: CONTEXT.RawValue(ctypes.c_double, 2.4)),
        (ctypes.c_double(2.4), lambda: CONTEXT.RawValue("d", 2.4)),
        ((ctypes.c_short * 7)(), lambda: CONTEXT.RawArray(ctypes.c_short, 7)),
        ((ctypes.c_short * 7)(), lambda: CONTEXT.RawArray("h", 7)),
        ((ctypes.c_int * 3)(9, 2, 8), lambda: CONTEXT.RawArray(ctypes.c_int, (9, 2, 8))),
        ((ctypes.c_int * 3)(9, 2, 8), lambda: CONTEXT.RawArray("i", (9, 2, 8))),
    ],
)
def test_raw_objects_equal_the_objects_of_ctypes(plain: Any, shared: Any) -> None:
    """The table below compares the syntax for creating shared ctypes objects from shared memory with the normal ctypes
    syntax."""
    assert isinstance(shared(), type(plain))
    assert bytes(shared()) == bytes(plain)


def test_objects_of_sharedctypes_have_the_wrappers_of_values() -> None:
    """synchronized(): return a process-safe wrapper object for a ctypes object, with get_obj() and get_lock(); it
    supports the context manager protocol. copy(): return a ctypes object allocated from shared memory which is a copy
    of the ctypes object obj."""
    lock, plain = CONTEXT.Lock(), Point(1, 2)
    raw, copy = CONTEXT.RawValue("i", 3), mp.sharedctypes.copy(plain)
    value = mp.sharedctypes.synchronized(raw, lock)
    assert (value.get_obj() is raw, value.get_lock() is lock) == (True, True)
    plain.x = 9
    assert ended(start(change, value, copy)) == 0
    assert (raw.value, copy.x, copy.y) == (4, 1, 4)
    with value:
        assert ended(start(try_lock, value)) == 1
    assert ended(start(try_lock, value)) == 0


def change(value: Any, point: Any) -> None:
    with value.get_lock():
        value.get_obj().value += 1
    point.y **= 2


def try_lock(value: Any) -> None:
    raise SystemExit(not value.get_lock().acquire(False))


def test_objects_of_sharedctypes_are_changed_by_processes(site: Site) -> None:
    """Below is an example where a number of ctypes objects are modified by a child process (with Value and Array of
    multiprocessing.sharedctypes, once the start method is chosen)."""
    result = site.python("""
        import multiprocessing as mp
        from ctypes import Structure, c_double
        from multiprocessing import Lock, Process
        from multiprocessing.sharedctypes import Array, Value

        import dragon

        class Point(Structure):
            _fields_ = [("x", c_double), ("y", c_double)]

        def modify(n, x, s, A):
            n.value **= 2
            x.value **= 2
            s.value = s.value.upper()
            for a in A:
                a.x **= 2
                a.y **= 2

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            lock = Lock()
            n = Value("i", 7)
            x = Value(c_double, 1.0 / 3.0, lock=False)
            s = Array("c", b"hello world", lock=lock)
            A = Array(Point, [(1.875, -6.25), (-5.75, 2.0), (2.375, 9.5)], lock=lock)
            p = Process(target=modify, args=(n, x, s, A))
            p.start()
            p.join()
            print(n.value, x.value, s.value, [(a.x, a.y) for a in A])
    """)
    expected = "49 0.1111111111111111 b'HELLO WORLD' [(3.515625, 39.0625), (33.0625, 4.0), (5.640625, 90.25)]\n"
    assert result.stdout == expected, result.stderr
