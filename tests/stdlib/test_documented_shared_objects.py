"""Guarantees of the standard library's documentation for the objects of managers.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from documented import CONTEXT, LONG


@pytest.fixture(scope="module")
def manager() -> Iterator[Any]:
    with CONTEXT.Manager() as manager:
        yield manager


def started(target: Any, *args: Any) -> Any:
    process = CONTEXT.Process(target=target, args=args)
    process.start()
    return process


def test_a_manager_creates_the_documented_types() -> None:
    """A manager returned by Manager() will support types list, dict, Namespace, Lock, RLock, Semaphore,
    BoundedSemaphore, Condition, Event, Barrier, Queue, Value and Array."""
    with CONTEXT.Manager() as manager:
        for name in ("Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition"):
            with getattr(manager, name)():
                pass
        event, box = manager.Event(), manager.Queue()
        event.set()
        box.put(1)
        assert (event.is_set(), box.get(), manager.Value("i", 3).value, manager.Array("i", [1, 2])[1]) == (
            True,
            1,
            3,
            2,
        )
        assert manager.Barrier(1).wait() == 0
        namespace = manager.Namespace()
        namespace.x = 5
        assert namespace.x == 5


def change_both(names: Any, numbers: Any) -> None:
    names[1] = "1"
    names["2"] = 2
    names[0.25] = None
    numbers.reverse()


def test_the_example_of_a_manager(manager: Any) -> None:
    """A manager object returned by Manager() controls a server process which holds Python objects and allows other
    processes to manipulate them using proxies."""
    names, numbers = manager.dict(), manager.list(range(10))
    started(change_both, names, numbers).join(LONG)
    assert names.copy() == {0.25: None, 1: "1", "2": 2}
    assert numbers[:] == list(range(9, -1, -1))


def test_a_condition_of_a_manager_takes_a_lock_of_it(manager: Any) -> None:
    """If lock is supplied then it should be a proxy for a threading.Lock or threading.RLock object. The wait_for()
    method was added."""
    lock = manager.Lock()
    condition, names = manager.Condition(lock), manager.Namespace(ready=False)
    process = started(notify, condition, names)
    with condition:
        assert lock.acquire(False) is False
        assert condition.wait_for(lambda: names.ready, LONG)
    process.join(LONG)


def notify(condition: Any, names: Any) -> None:
    with condition:
        names.ready = True
        condition.notify_all()


@pytest.mark.skipif(sys.version_info < (3, 14), reason="managers have sets from Python 3.14 on")
def test_a_manager_shares_a_set(manager: Any) -> None:
    """set(), set(sequence), set(mapping): create a shared set object and return a proxy for it."""
    numbers = manager.set([1, 2])
    started(numbers.add, 3).join(LONG)
    assert numbers.copy() == {1, 2, 3}
