"""Guarantees of the standard library's documentation for the objects of managers.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import queue
import sys
from collections.abc import Iterator
from multiprocessing.managers import NamespaceProxy
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


def test_a_namespace_has_writable_attributes(manager: Any) -> None:
    """A namespace object has no public methods, but does have writable attributes. Its representation shows the
    values of its attributes. However, when using a proxy for a namespace object, an attribute beginning with '_'
    will be an attribute of the proxy and not an attribute of the referent."""
    names = manager.Namespace()
    names.x, names.y, names._z = 10, "hello", 12.3
    assert isinstance(names, NamespaceProxy)
    assert str(names) == "Namespace(x=10, y='hello')"
    del names.x
    with pytest.raises(AttributeError):
        _ = names.x


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


@pytest.mark.parametrize("kind", ["Lock", "RLock", "Semaphore", "BoundedSemaphore"])
def test_a_lock_of_a_manager_excludes_other_processes(manager: Any, kind: str) -> None:
    """Create a shared threading.Lock object (RLock, Semaphore, BoundedSemaphore) and return a proxy for it."""
    lock, box = getattr(manager, kind)(), CONTEXT.Queue()
    with lock:
        started(try_lock, lock, box).join(LONG)
        assert box.get(timeout=LONG) is False
    started(try_lock, lock, box).join(LONG)
    assert box.get(timeout=LONG) is True


def try_lock(lock: Any, box: Any) -> None:
    box.put(lock.acquire(False))


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


def test_a_manager_shares_an_event_and_a_barrier(manager: Any) -> None:
    """Create a shared threading.Event object and return a proxy for it. Create a shared threading.Barrier object and
    return a proxy for it."""
    event, barrier = manager.Event(), manager.Barrier(2)
    process = started(wait_for_both, event, barrier)
    event.set()
    assert barrier.wait(LONG) in (0, 1)
    process.join(LONG)
    assert (process.exitcode, barrier.broken, barrier.parties) == (0, False, 2)


def wait_for_both(event: Any, barrier: Any) -> None:
    assert event.wait(LONG)
    barrier.wait(LONG)


def test_a_queue_of_a_manager_has_a_size(manager: Any) -> None:
    """Create a shared queue.Queue object and return a proxy for it."""
    box = manager.Queue(1)
    started(box.put, "item").join(LONG)
    with pytest.raises(queue.Full):
        box.put_nowait("more")
    assert box.get() == "item"
    box.task_done()
    box.join()


def test_values_and_arrays_of_a_manager_are_changed(manager: Any) -> None:
    """Create an array and return a proxy for it. Create an object with a writable value attribute and return a proxy
    for it."""
    value, numbers = manager.Value("i", 1), manager.Array("i", [1, 2])
    started(set_both, value, numbers).join(LONG)
    assert (value.value, list(numbers)) == (5, [1, 7])


def set_both(value: Any, numbers: Any) -> None:
    value.value = 5
    numbers[1] = 7


@pytest.mark.skipif(sys.version_info < (3, 14), reason="managers have sets from Python 3.14 on")
def test_a_manager_shares_a_set(manager: Any) -> None:
    """set(), set(sequence), set(mapping): create a shared set object and return a proxy for it."""
    numbers = manager.set([1, 2])
    started(numbers.add, 3).join(LONG)
    assert numbers.copy() == {1, 2, 3}
