"""Locks, semaphores, events, conditions, barriers, values and arrays between processes."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from dragon.native import (
    Array,
    Barrier,
    BoundedSemaphore,
    Condition,
    Event,
    Lock,
    Process,
    Queue,
    RLock,
    Semaphore,
    Value,
)

Wait = Callable[..., None]


def run(function: Any, *args: Any) -> Process:
    process = Process(function, args)
    process.start()
    return process


def count(lock: Lock, value: Value, counts: Queue) -> None:
    counted, end = 0, time.monotonic() + 1
    while time.monotonic() < end:
        with lock:
            value.value += 1
        counted += 1
    counts.put(counted)


def test_a_lock_excludes_other_processes() -> None:
    lock, value, counts = Lock(), Value("i", 0), Queue()
    processes = [run(count, lock, value, counts) for _ in range(3)]
    for process in processes:
        process.join()
    assert value.value == sum(counts.get(timeout=30) for _ in range(3))


def hold_and_die(lock: Lock, ready: Event) -> None:
    lock.acquire()
    ready.set()
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("kind", [Lock, RLock])
def test_a_lock_whose_holder_died_is_recovered_with_a_warning(kind: type[Lock]) -> None:
    lock, ready = kind(), Event()
    process = run(hold_and_die, lock, ready)
    assert ready.wait(30)
    process.join()
    with pytest.warns(RuntimeWarning, match="died"):
        assert lock.acquire(timeout=30)
    lock.release()


def test_any_thread_can_release_a_lock_and_only_its_owner_a_recursive_lock() -> None:
    lock = Lock()
    lock.acquire()
    thread = threading.Thread(target=lock.release)
    thread.start()
    thread.join()
    assert lock.count() == 0
    with pytest.raises(ValueError, match="too many"):
        lock.release()
    recursive = RLock()
    assert recursive.acquire()
    assert recursive.acquire()
    assert recursive.count() == 2
    assert recursive.is_mine()
    errors: list[BaseException] = []

    def release() -> None:
        try:
            recursive.release()
        except AssertionError as error:
            errors.append(error)

    thread = threading.Thread(target=release)
    thread.start()
    thread.join()
    assert len(errors) == 1
    recursive.release()
    recursive.release()


def test_semaphores_have_timeouts_and_limits() -> None:
    semaphore = Semaphore(2)
    assert semaphore.acquire()
    assert semaphore.acquire()
    assert not semaphore.acquire(blocking=False)
    assert not semaphore.acquire(timeout=0.01)
    threading.Timer(0.05, semaphore.release, (2,)).start()
    assert semaphore.acquire(timeout=30)
    assert Semaphore.attach(semaphore.serialize()).get_value() == semaphore.get_value()
    bounded = BoundedSemaphore(1)
    with pytest.raises(ValueError, match="too many"):
        bounded.release()
    with pytest.raises(ValueError, match="negative"):
        Semaphore(-1)


def test_an_event_wakes_all_waiting_processes() -> None:
    event, queue = Event(), Queue()
    processes = [run(_wait_and_tell, event, queue) for _ in range(3)]
    assert not event.wait(0.01)
    event.set()
    assert [queue.get(timeout=30) for _ in processes] == [True] * 3
    event.clear()
    assert not event.is_set()
    for process in processes:
        process.join()


def _wait_and_tell(event: Event, queue: Queue) -> None:
    queue.put(event.wait(30))


def _wait_condition(condition: Condition, arrived: Semaphore, queue: Queue, name: Any) -> None:
    with condition:
        arrived.release()
        condition.wait()
        queue.put(name)


def test_a_condition_notifies_in_order_and_skips_ended_processes(wait_until: Wait) -> None:
    condition, arrived, queue = Condition(), Semaphore(0), Queue()
    processes = []
    for name in range(3):
        processes.append(run(_wait_condition, condition, arrived, queue, name))
        assert arrived.acquire(timeout=30)
        with condition:  # the waiter is inside wait() now
            pass
    processes[0].kill()
    processes[0].join()
    for expected in (1, 2):
        with condition:
            condition.notify()
        assert queue.get(timeout=30) == expected
    with condition:
        assert not condition.wait(0.01)
        assert condition.wait_for(lambda: False, 0.01) is False
    with pytest.raises(AssertionError):
        condition.notify()
    for process in processes[1:]:
        process.join()


@pytest.mark.parametrize("kind", [Semaphore, Barrier])
def test_attach_refuses_data_that_serialize_did_not_return(kind: Any) -> None:
    with pytest.raises(ValueError, match=f"of a {kind.__name__.lower()} gave"):
        kind.attach("nonsense")


def _pass(barrier: Barrier, queue: Queue) -> None:
    queue.put(barrier.wait(30))


def test_a_barrier_releases_its_parties_together() -> None:
    barrier, queue = Barrier(3), Queue()
    processes = [run(_pass, barrier, queue) for _ in range(2)]
    queue.put(barrier.wait(30))
    assert sorted(queue.get(timeout=30) for _ in range(3)) == [0, 1, 2]
    assert Barrier.attach(barrier.serialize()).parties == 3
    with pytest.raises(threading.BrokenBarrierError):
        barrier.wait(0.01)
    assert barrier.broken
    barrier.reset()
    assert not barrier.broken
    for process in processes:
        process.join()
    for arguments in (
        {"parties": "two"},
        {"parties": 1},
        {"parties": 2**20},
        {"parties": 2, "action": 3},
        {"parties": 2, "timeout": -1},
    ):
        with pytest.raises(ValueError):
            Barrier(**arguments)  # type: ignore[arg-type]


def _rounds(barrier: Barrier, count: int, queue: Queue) -> None:
    queue.put([barrier.wait(30) for _ in range(count)])


def test_each_party_has_another_number_in_each_round() -> None:
    barrier, queue = Barrier(3), Queue()
    processes = [run(_rounds, barrier, 200, queue) for _ in range(3)]
    numbers = [queue.get(timeout=60) for _ in processes]
    assert all(sorted(of_a_round) == [0, 1, 2] for of_a_round in zip(*numbers, strict=True))
    for process in processes:
        process.join()


def test_more_processes_than_parties_pass_in_turns() -> None:
    barrier, queue = Barrier(2), Queue()
    processes = [run(_rounds, barrier, 1, queue) for _ in range(6)]
    assert sorted(queue.get(timeout=30) for _ in processes) == [[0]] * 3 + [[1]] * 3
    for process in processes:
        process.join()


def test_a_barrier_can_be_reset_after_a_party_was_killed_at_any_moment() -> None:
    barrier, queue = Barrier(2), Queue()
    for milliseconds in range(10):
        killed, other = (run(_rounds, barrier, 10**6, queue) for _ in range(2))
        time.sleep(0.1 + milliseconds / 1000)
        killed.kill()
        killed.join()
        barrier.abort()
        other.join(30)
        assert not other.is_alive
        barrier.reset()
    processes = [run(_rounds, barrier, 20, queue) for _ in range(2)]
    assert [len(queue.get(timeout=30)) for _ in processes] == [20, 20]
    for process in processes:
        process.join()


def test_the_action_of_a_barrier_that_fails_breaks_it() -> None:
    barrier, queue = Barrier(2, lambda: 1 / 0), Queue()
    processes = [run(_caught, barrier, queue) for _ in range(2)]
    assert sorted(queue.get(timeout=30) for _ in processes) == ["BrokenBarrierError", "ZeroDivisionError"]
    assert barrier.broken
    for process in processes:
        process.join()


def _caught(barrier: Barrier, queue: Queue) -> None:
    try:
        barrier.wait(30)
    except Exception as error:
        queue.put(type(error).__name__)


class Point(ctypes.Structure):
    _fields_ = (("x", ctypes.c_double), ("y", ctypes.c_double))


def _change(value: Value, point: Value, array: Array) -> None:
    value.value = 5
    point.x = 2.5
    array[1] = 7
    array[2:4] = [8, 9]


def test_values_and_arrays_are_shared() -> None:
    value, point, array = Value("i", 1, lock=True), Value(Point, (1.0, 2.0)), Array("i", 4)
    run(_change, value, point, array).join()
    assert (value.value, point.x, point.y, list(array)) == (5, 2.5, 2.0, [0, 7, 8, 9])
    with value, array:
        assert len(array) == 4
    text = Array("c", b"hello", lock=False)
    assert (text.value, text.raw) == (b"hello", b"hello")
    with pytest.raises(IndexError, match="out of range"):
        array[4]
    with pytest.raises(ValueError, match="negative"):
        Array("i", -1)
    with pytest.raises(AttributeError):
        Value("no type")
    with pytest.raises(AttributeError, match="this Value was made without a lock"):
        Value("i").acquire()
    with pytest.raises(AttributeError):
        Value("i", lock="no lock")


class Cell(ctypes.Structure):
    _fields_ = (("point", Point), ("counts", ctypes.c_int * 3))


def _change_within(cell: Value, points: Array, rows: Array) -> None:
    cell.point.x = 9.0
    cell.counts[1] = 4
    for point in points:
        point.x **= 2
    points[0].y = 7.0
    rows[1][2] = 6
    for row in rows:
        row[0] += 1


def test_nested_structures_and_arrays_are_shared() -> None:
    cell, points, rows = Value(Cell), Array(Point, [(1.5, 0.0), (4.0, 1.0)]), Array(ctypes.c_int * 3, 2)
    assert run(_change_within, cell, points, rows).join() == 0
    assert (cell.point.x, list(cell.counts)) == (9.0, [0, 4, 0])
    assert [(point.x, point.y) for point in points] == [(2.25, 7.0), (16.0, 1.0)]
    assert [list(row) for row in rows] == [[1, 0, 0], [1, 0, 6]]
    assert run(_change_within, cell, points, rows).join() == 0  # what was taken out once changes along
    assert (cell.point.x, points[1].x, rows[0][0]) == (9.0, 256.0, 2)


def test_a_signal_handler_runs_during_a_wait() -> None:
    event = Event()
    hits: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda *_: hits.append(1))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        start = time.monotonic()
        assert not event.wait(0.3)
        assert hits == [1]
        assert time.monotonic() - start >= 0.29
    finally:
        signal.signal(signal.SIGALRM, before)
