"""The node of objects that are created with `m_uid`; tests/cluster runs these tests over two nodes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from dragon.infrastructure.facts import default_pool_muid_from_index
from dragon.native.array import Array
from dragon.native.barrier import Barrier
from dragon.native.condition import Condition
from dragon.native.event import Event
from dragon.native.lock import Lock, RLock
from dragon.native.machine import System
from dragon.native.process import Process
from dragon.native.semaphore import BoundedSemaphore, Semaphore
from dragon.native.value import Value


class Named(Lock):
    """A subclass of Lock with an additional argument."""

    def __init__(self, name: str, m_uid: int) -> None:
        super().__init__(m_uid)
        self.name = name


class Point(ctypes.Structure):
    _fields_ = (("x", ctypes.c_int), ("y", ctypes.c_double))


def last() -> int:
    return default_pool_muid_from_index(System().nnodes - 1)


@pytest.mark.parametrize("make", [Lock, RLock, lambda m_uid: Semaphore(1, m_uid=m_uid), BoundedSemaphore])
def test_objects_can_be_in_the_memory_of_any_node(make: Callable[..., Any]) -> None:
    thing = make(m_uid=last())
    with thing:
        process = Process(thing.acquire, (False,))
        process.start()
        process.join()
        assert process.returncode == 0
    assert thing.acquire(timeout=10)


def test_a_subclass_can_have_additional_arguments() -> None:
    lock = Named("mine", last())
    assert isinstance(lock, Named)
    with lock:
        assert (lock.name, lock.is_mine(), lock.count()) == ("mine", True, 1)


def _set_and_meet(event: Event, barrier: Barrier, condition: Condition) -> None:
    event.set()
    barrier.wait()
    with condition:
        condition.notify()


def test_events_barriers_and_conditions_can_be_in_the_memory_of_any_node() -> None:
    m_uid = last()
    event, barrier, condition = Event(m_uid), Barrier(2, m_uid=m_uid), Condition(m_uid=m_uid)
    process = Process(_set_and_meet, (event, barrier, condition))
    process.start()
    assert event.wait(30)
    with condition:
        barrier.wait(30)
        assert condition.wait(30)
    process.join()


def _count_up(value: Any, point: Any, array: Any) -> None:
    with value:
        value.value += 1
    point.y *= 2
    array[1] = 5


def test_values_and_arrays_on_any_node_have_the_given_initial_values() -> None:
    m_uid = last()
    value, point = Value("i", 41, lock=True, m_uid=m_uid), Value(Point, (3, 0.5), m_uid=m_uid)
    array = Array("d", [1, 2, 3], m_uid=m_uid)
    process = Process(_count_up, (value, point, array))
    process.start()
    process.join()
    assert (value.value, point.x, point.y, array[:]) == (42, 3, 1.0, [1.0, 5.0, 3.0])


@pytest.mark.parametrize("m_uid", [-1, 1000, "node-0", 0.5])
def test_an_invalid_m_uid_raises_value_error(m_uid: Any) -> None:
    with pytest.raises(ValueError, match=r"m_uid=.*default_pool_muid_from_index"):
        Lock(m_uid)
