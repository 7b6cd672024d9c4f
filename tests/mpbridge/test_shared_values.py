"""multiprocessing's values and arrays."""

from __future__ import annotations

import ctypes
import multiprocessing as mp
from typing import Any

import dragon  # noqa: F401 - registers the start method
from dragon.native.process import Process

context = mp.get_context("dragon")


class Point(ctypes.Structure):
    _fields_ = (("x", ctypes.c_double), ("y", ctypes.c_double))


def square(points: Any, rows: Any, queue: Any) -> None:
    for point in points:
        point.x **= 2
        point.y **= 2
    with rows.get_lock():
        rows[1][2] = 6
    queue.get()[0] = 3


def test_they_go_to_native_processes_and_through_queues() -> None:
    points = context.Array(Point, [(1.5, -2.0), (-3.0, 2.0)])
    rows, single, queue = context.Array(ctypes.c_int * 3, 2), context.Array("i", 2), context.Queue()
    queue.put(single)
    process = Process(square, (points, rows, queue))
    process.start()
    assert process.join() == 0
    assert [(point.x, point.y) for point in points] == [(2.25, 4.0), (9.0, 4.0)]
    assert (list(rows[1]), single[:]) == ([0, 0, 6], [3, 0])
