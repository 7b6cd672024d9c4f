"""Values and arrays of multiprocessing."""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import pickle
from typing import TYPE_CHECKING, Any

import cloudpickle
import pytest

import dragon  # noqa: F401 - registers the start method
from dragon.mpbridge.sharedctypes import DragonValue
from dragon.native.process import Process

if TYPE_CHECKING:
    from conftest import Site

context = mp.get_context("dragon")


class Point(ctypes.Structure):
    _fields_ = (("x", ctypes.c_double), ("y", ctypes.c_double))


def test_values_and_arrays_can_be_pickled_by_any_pickler() -> None:
    for pickler in (pickle, cloudpickle):
        value, array = context.Value("i", 3), context.Array("d", 2)
        pickler.loads(pickler.dumps(value)).value += 1
        pickler.loads(pickler.dumps(array))[1] = 0.5
        assert (value.value, array[:]) == (4, [0, 0.5])
    with pytest.raises(RuntimeError, match="through inheritance"):
        pickle.dumps(mp.get_context("fork").Value("i"))


def test_a_value_that_is_made_without_a_context_has_a_lock_of_the_run() -> None:
    value = DragonValue("i", 3)
    assert type(value.get_lock()) is type(context.RLock())
    assert value.value == 3


def square(points: Any, rows: Any, queue: Any) -> None:
    for point in points:
        point.x **= 2
        point.y **= 2
    with rows.get_lock():
        rows[1][2] = 6
    queue.get()[0] = 3


def test_values_and_arrays_go_to_native_processes_and_through_queues() -> None:
    points = context.Array(Point, [(1.5, -2.0), (-3.0, 2.0)])
    rows, single, queue = context.Array(ctypes.c_int * 3, 2), context.Array("i", 2), context.Queue()
    queue.put(single)
    process = Process(square, (points, rows, queue))
    process.start()
    assert process.join() == 0
    assert [(point.x, point.y) for point in points] == [(2.25, 4.0), (9.0, 4.0)]
    assert (list(rows[1]), single[:]) == ([0, 0, 6], [3, 0])


def test_values_of_dragon_and_of_the_standard_library_can_have_the_same_type(site: Site) -> None:
    result = site.python("""
        import multiprocessing as mp
        from ctypes import c_int
        from multiprocessing.sharedctypes import copy

        import dragon

        def add(*values):
            for value in values:
                value.value += 1

        def added(method, *values):
            process = mp.get_context(method).Process(target=add, args=values)
            process.start()
            process.join()
            return [value.value for value in values]

        def own():
            return mp.get_context("dragon").RawValue("i", 1)

        if __name__ == "__main__":
            standard = copy(c_int(1))
            print(added("dragon", standard, own()), added("spawn", standard), added("dragon", standard, own()))
            print(*(added("dragon", make()) for make in (lambda: copy(c_int(1)), own, lambda: copy(c_int(1)))))
    """)
    assert result.stdout == "[2, 2] [3] [4, 2]\n[2] [2] [2]\n", result.stderr
