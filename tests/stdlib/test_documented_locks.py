"""What the standard library's documentation promises of locks and the like.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import multiprocessing as mp
import threading
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


def test_locks_may_be_released_by_anybody() -> None:
    """A non-recursive lock object: release() can be called from any process or thread, not only the one which
    originally acquired the lock. When invoked on an unlocked lock, a ValueError is raised."""
    lock = CONTEXT.Lock()
    assert lock.acquire() is True
    assert lock.acquire(block=False) is False
    assert lock.acquire(timeout=0.01) is False
    ended(start(release, lock))
    with pytest.raises(ValueError, match="released too many times"):
        lock.release()
    with lock:
        assert not lock.acquire(False)


def release(lock: Any) -> None:
    lock.release()


def test_recursive_locks_belong_to_their_owner() -> None:
    """A recursive lock must be released by the process or thread that acquired it. An AssertionError is raised if this
    method is called by a process or thread other than the owner or if the lock is in an unlocked state."""
    lock = CONTEXT.RLock()
    assert lock.acquire()
    assert lock.acquire()
    errors: list[str] = []
    thread = threading.Thread(target=lambda: errors.append(error_of(lock.release)))
    thread.start()
    thread.join()
    lock.release()
    lock.release()
    assert [*errors, error_of(lock.release)] == ["AssertionError", "AssertionError"]


def error_of(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return ""


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
    assert event.wait(0.01) is False


def set_all(event: Any, condition: Any, value: Any) -> None:
    event.set()
    for number in range(1, 4):
        with condition:
            value.value = number
            condition.notify_all()


def test_barriers() -> None:
    """Barrier: a clone of threading.Barrier."""
    barrier = CONTEXT.Barrier(2, timeout=LONG)
    process = start(barrier.wait)
    assert barrier.wait() in (0, 1)
    ended(process)
    with pytest.raises(threading.BrokenBarrierError):
        barrier.wait(0.01)
    assert barrier.broken


@pytest.mark.parametrize("kind", ["Lock", "RLock", "Semaphore", "BoundedSemaphore"])
def test_acquire_says_whether_it_was_acquired(kind: str) -> None:
    """With the block argument set to False, the method call does not block. When invoked with a positive,
    floating-point value for timeout, block for at most the number of seconds specified by timeout as long as the
    lock can not be acquired. Invocations with a negative value for timeout are equivalent to a timeout of zero."""
    lock = getattr(CONTEXT, kind)()
    got: list[Any] = []
    assert lock.acquire() is True
    thread = threading.Thread(
        target=lambda: got.extend([lock.acquire(False), lock.acquire(True, 0.01), lock.acquire(True, -1)])
    )
    thread.start()
    thread.join(LONG)
    assert got == [False, False, False]
    lock.release()
    with lock:
        assert True


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


def test_an_event_is_waited_for() -> None:
    """Event: wait(timeout) blocks until the internal flag is true, and returns whether it is."""
    event = CONTEXT.Event()
    assert event.wait(0.01) is False
    process = start(event.set)
    assert event.wait(LONG) is True
    event.clear()
    assert not event.is_set()
    assert ended(process) == 0


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
