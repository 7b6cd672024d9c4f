"""Guarantees of the standard library's documentation for locks and other synchronization primitives.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import multiprocessing as mp
import multiprocessing.synchronize
import os
import queue
import signal
import sys
import threading
import time
from typing import Any

import pytest
from documented import CONTEXT, LONG, ended, start


def test_a_lock_can_be_released_by_any_process() -> None:
    """A non-recursive lock object: release() can be called from any process or thread, not only the one which
    originally acquired the lock. When invoked on an unlocked lock, a ValueError is raised."""
    lock = CONTEXT.Lock()
    assert lock.acquire()
    assert ended(start(lock.release)) == 0
    with pytest.raises(ValueError, match="released too many times"):
        lock.release()
    with lock:
        assert not lock.acquire(False)


def test_a_recursive_lock_is_released_by_its_owner_once_for_each_acquire() -> None:
    """A recursive lock must be released by the process or thread that acquired it, once for each time it has been
    acquired. An AssertionError is raised if this method is called by a process or thread other than the owner or if the
    lock is in an unlocked state."""
    lock, box = CONTEXT.RLock(), CONTEXT.Queue()
    assert lock.acquire()
    assert lock.acquire(False)
    thread = threading.Thread(target=tell_error_of_release, args=(lock, box))
    thread.start()
    thread.join(LONG)
    assert ended(start(tell_error_of_release, lock, box)) == 0
    lock.release()
    assert ended(start(try_to_acquire, lock)) == 1
    lock.release()
    tell_error_of_release(lock, box)
    assert [box.get(timeout=LONG) for _ in range(3)] == ["AssertionError"] * 3
    assert ended(start(try_to_acquire, lock)) == 0


def test_semaphores() -> None:
    """BoundedSemaphore: a release beyond the initial value is an error; a Semaphore has no bound."""
    semaphore, bounded = CONTEXT.Semaphore(1), CONTEXT.BoundedSemaphore(1)
    semaphore.release()
    assert semaphore.get_value() == 2
    with pytest.raises(ValueError, match="released too many times"):
        bounded.release()
    assert bounded.acquire()
    assert not bounded.acquire(False)


def test_events_and_conditions_wake_other_processes() -> None:
    """wait_for(): wait until a condition evaluates to true. Event: a clone of threading.Event."""
    event, condition, value = CONTEXT.Event(), CONTEXT.Condition(), CONTEXT.Value("i", 0)
    process = start(set_all, event, condition, value)
    assert event.wait(LONG)
    with condition:
        assert condition.wait_for(lambda: value.value == 3, LONG)
    assert ended(process) == 0
    event.clear()
    assert not event.is_set()
    assert event.wait(0.01) is False


def set_all(event: Any, condition: Any, value: Any) -> None:
    event.set()
    for number in range(1, 4):
        with condition:
            value.value = number
            condition.notify_all()


@pytest.mark.parametrize("kind", ["Lock", "RLock", "Semaphore", "BoundedSemaphore"])
def test_acquire_returns_whether_the_lock_was_acquired(kind: str) -> None:
    """With the block argument set to False, the method call does not block, and timeout is ignored. With a positive
    value for timeout, block for at most that many seconds; a negative value is equivalent to zero. Invocations with a
    timeout value of None (the default) set the timeout period to infinite."""
    lock = getattr(CONTEXT, kind)()
    got: list[Any] = []
    assert lock.acquire(block=True, timeout=None) is True
    ways = [{"block": False}, {"block": False, "timeout": LONG}, {"timeout": 0.01}, {"timeout": -1}]
    thread = threading.Thread(target=lambda: got.extend(lock.acquire(**way) for way in ways))
    thread.start()
    thread.join(LONG)
    assert got == [False] * 4
    lock.release()
    with lock:
        assert isinstance(lock, getattr(mp.synchronize, kind))


def test_a_condition_is_notified() -> None:
    """Condition: a condition variable, an alias for threading.Condition; notify(n) wakes up at most n of the tasks
    waiting for it."""
    condition, waiting, woken = CONTEXT.Condition(), CONTEXT.Semaphore(0), CONTEXT.Semaphore(0)
    processes = [start(wait_for_it, condition, waiting, woken) for _ in range(3)]
    for _ in processes:
        assert waiting.acquire(timeout=LONG)
    with condition:  # all wait now, as each holds the lock until it does
        condition.notify(2)
    assert woken.acquire(timeout=LONG)
    assert woken.acquire(timeout=LONG)
    assert not woken.acquire(timeout=0.1)
    with condition:
        condition.notify_all()
    assert [ended(process) for process in processes] == [0, 0, 0]


def wait_for_it(condition: Any, waiting: Any, woken: Any) -> None:
    with condition:
        waiting.release()
        assert condition.wait(LONG)
    woken.release()


def test_a_barrier_has_an_action_and_can_be_broken() -> None:
    """Barrier(parties[, action[, timeout]]): a barrier object: a clone of threading.Barrier. (Whoever is last
    calls the action; abort() puts the barrier into a broken state, reset() returns it to the empty one.)"""
    barrier = CONTEXT.Barrier(1, lambda: called.append(1), 5)
    called: list[int] = []
    assert barrier.wait() == 0
    assert (called, barrier.parties, barrier.n_waiting, barrier.broken) == ([1], 1, 0, False)
    barrier.abort()
    assert barrier.broken
    with pytest.raises(threading.BrokenBarrierError):
        barrier.wait()
    barrier.reset()
    assert barrier.wait() == 0
    with pytest.raises(threading.BrokenBarrierError):
        CONTEXT.Barrier(2, timeout=0.01).wait()


def try_to_acquire(lock: Any) -> None:
    sys.exit(not lock.acquire(False))


def tell_error_of_release(lock: Any, box: Any) -> None:
    try:
        lock.release()
    except Exception as error:
        box.put(type(error).__name__)


@pytest.mark.parametrize("kind", ["Lock", "RLock"])
def test_a_released_lock_is_acquired_by_exactly_one_waiter(kind: str) -> None:
    """Once a process or thread has acquired a lock, subsequent attempts to acquire it from any process or thread will
    block until it is released. If any are blocked waiting, allow exactly one of them to proceed."""
    lock, box, go = getattr(CONTEXT, kind)(), CONTEXT.Queue(), CONTEXT.Event()
    with lock:
        processes = [start(acquire_until, lock, box, go) for _ in range(2)]
        with pytest.raises(queue.Empty):
            box.get(timeout=0.05)
    assert box.get(timeout=LONG) == "acquired"
    with pytest.raises(queue.Empty):
        box.get(timeout=0.05)
    go.set()
    assert box.get(timeout=LONG) == "acquired"
    assert [ended(process) for process in processes] == [0, 0]


def acquire_until(lock: Any, box: Any, go: Any) -> None:
    with lock:
        box.put("acquired")
        go.wait(LONG)


@pytest.mark.parametrize("kind", ["Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition", "wait"])
def test_ctrl_c_interrupts_a_waiting_acquire(kind: str) -> None:
    """If the SIGINT signal generated by Ctrl-C arrives while the main thread is blocked by a call to
    BoundedSemaphore.acquire(), Lock.acquire(), RLock.acquire(), Semaphore.acquire(), Condition.acquire() or
    Condition.wait() then the call will be immediately interrupted and KeyboardInterrupt will be raised."""
    lock, box = getattr(CONTEXT, "Condition" if kind == "wait" else kind)(), CONTEXT.Queue()
    if kind != "wait":
        lock.acquire()
    process = start(wait_or_acquire, lock, box, kind == "wait")
    assert box.get(timeout=LONG) == "waiting"
    time.sleep(0.035)
    os.kill(process.pid, signal.SIGINT)
    assert box.get(timeout=LONG) == "interrupted"
    assert ended(process) == 0


def wait_or_acquire(lock: Any, box: Any, wait: bool) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        if wait:
            with lock:
                box.put("waiting")
                lock.wait()
        else:
            box.put("waiting")
            lock.acquire()
    except KeyboardInterrupt:
        box.put("interrupted")


@pytest.mark.parametrize("kind", ["Lock", "RLock"])
def test_a_condition_takes_a_lock(kind: str) -> None:
    """If lock is specified then it should be a Lock or RLock object from multiprocessing."""
    lock = getattr(CONTEXT, kind)()
    condition = CONTEXT.Condition(lock)
    with condition:
        assert ended(start(try_to_acquire, lock)) == 1
    assert ended(start(try_to_acquire, lock)) == 0


def test_wait_for_a_condition_ends_at_its_timeout() -> None:
    """wait(), wait_for(): the return value is that of the predicate, or False if the method timed out (of
    threading.Condition, of which this is an alias)."""
    condition = CONTEXT.Condition()
    with condition:
        assert condition.wait(0.01) is False
        assert condition.wait_for(lambda: [], 0.01) == []
        assert condition.wait_for(lambda: "true", 0.01) == "true"


def test_wait_at_a_barrier_returns_a_different_number_to_each_process() -> None:
    """Barrier: a clone of threading.Barrier. (The return value of wait() is an integer in the range 0 to parties - 1,
    different for each.)"""
    barrier, box = CONTEXT.Barrier(3), CONTEXT.Queue()
    processes = [start(pass_barrier, barrier, box) for _ in range(3)]
    assert sorted(box.get(timeout=LONG) for _ in processes) == [0, 1, 2]
    assert [ended(process) for process in processes] == [0, 0, 0]


def pass_barrier(barrier: Any, box: Any) -> None:
    try:
        box.put(barrier.wait())
    except threading.BrokenBarrierError:
        box.put("broken")


def test_processes_that_wait_at_an_aborted_barrier_get_an_error() -> None:
    """Barrier: a clone of threading.Barrier. (abort() causes any active or future calls to wait() to fail with the
    BrokenBarrierError.)"""
    barrier, box = CONTEXT.Barrier(2), CONTEXT.Queue()
    process = start(pass_barrier, barrier, box)
    while not barrier.n_waiting:
        time.sleep(0.001)
    barrier.abort()
    assert box.get(timeout=LONG) == "broken"
    assert ended(process) == 0
