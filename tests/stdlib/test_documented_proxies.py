"""Guarantees of the standard library's documentation for the objects of managers and their proxies.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import gc
import queue
import sys
import threading
from collections.abc import Iterator
from multiprocessing.managers import BaseManager, BaseProxy, RemoteError
from typing import Any

import pytest
from documented import CONTEXT, LONG, ended, start


@pytest.fixture(scope="module")
def manager() -> Iterator[Any]:
    with CONTEXT.Manager() as manager:
        yield manager


def test_a_manager_creates_the_documented_types(manager: Any) -> None:
    """A manager returned by Manager() will support types list, dict, Namespace, Lock, RLock, Semaphore,
    BoundedSemaphore, Condition, Event, Barrier, Queue, Value and Array."""
    for name in ("Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition"):
        with getattr(manager, name)():
            pass
    event, box = manager.Event(), manager.Queue()
    event.set()
    box.put(1)
    assert (event.is_set(), box.get(), manager.Barrier(1).wait()) == (True, 1, 0)
    assert (manager.Value("i", 3).value, manager.Array("i", [1, 2])[1], manager.Namespace(x=5).x) == (3, 2, 5)
    assert repr(manager.list([1])).startswith("<ListProxy")
    assert str(manager.list([1])) == "[1]"


def test_processes_change_objects_of_a_manager(manager: Any) -> None:
    """A manager object returned by Manager() controls a server process which holds Python objects and allows other
    processes to manipulate them using proxies, which are picklable. As such, a referent can contain proxy objects.
    (There is never a problem with different processes using the same proxy.)"""
    names, numbers = manager.dict(), manager.list([manager.list()])
    processes = [start(change, names, numbers, name) for name in range(3)]
    assert [ended(process) for process in processes] == [0, 0, 0]
    assert names.copy() == {0: "0", 1: "1", 2: "2"}
    assert sorted(numbers[0]) == sorted([0, 1, 2] * 20)


def change(names: Any, numbers: Any, name: int) -> None:
    names[name] = str(name)
    for _ in range(20):
        numbers[0].append(name)


def test_a_condition_of_a_manager_takes_a_lock_of_it(manager: Any) -> None:
    """If lock is supplied then it should be a proxy for a threading.Lock or threading.RLock object. The wait_for()
    method was added."""
    lock = manager.Lock()
    condition, names = manager.Condition(lock), manager.Namespace(ready=False)
    process = start(notify, condition, names)
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
    start(numbers.add, 3).join(LONG)
    assert numbers.copy() == {1, 2, 3}


def test_changes_of_contained_proxies_are_seen_and_those_of_mutable_values_not(manager: Any) -> None:
    """If standard (non-proxy) list or dict objects are contained in a referent, modifications to those mutable values
    will not be propagated through the manager. A shared object can contain multiple shared objects."""
    outer = manager.dict(inner=manager.list([1]), plain=[1])
    outer["inner"].append(2)
    outer["plain"].append(2)
    assert (list(outer["inner"]), outer["plain"]) == ([1, 2], [1])


class Numbers:
    """A class of objects that a manager of the tests shares."""

    def __init__(self, box: Any = None) -> None:
        self.numbers = [1, 2, 3]
        self.box = box

    def __del__(self) -> None:
        if self.box is not None:
            self.box.put("deleted")

    def below(self, most: int) -> Iterator[int]:
        return (number for number in self.numbers if number < most)

    def themselves(self) -> list[int]:
        return self.numbers

    def last(self) -> int:
        return self.numbers[-1]

    def locks(self) -> Any:
        return threading.Lock()


class IteratorProxy(BaseProxy):
    _exposed_ = ("__next__",)

    def __iter__(self) -> IteratorProxy:
        return self

    def __next__(self) -> Any:
        return self._callmethod("__next__")  # type: ignore[func-returns-value]


class Manager(BaseManager):
    pass


Manager.register("Iterator", proxytype=IteratorProxy, create_method=False)
Manager.register("List", list)
Manager.register("Numbers", Numbers, method_to_typeid={"below": "Iterator", "themselves": "List"})


@pytest.fixture(scope="module")
def own() -> Iterator[Any]:
    with Manager(ctx=CONTEXT) as manager:
        yield manager


def test_a_method_may_return_a_proxy(own: Any) -> None:
    """method_to_typeid is a mapping used to specify the return type of those exposed methods which should return a
    proxy. If a method's name is not a key of this mapping then the object returned by the method will be copied by
    value. proxytype is a subclass of BaseProxy which is used to create proxies for shared objects with this typeid."""
    numbers = own.Numbers()
    below = numbers.below(3)
    assert isinstance(below, IteratorProxy)
    assert list(below) == [1, 2]
    themselves = numbers.themselves()
    themselves.append(4)
    assert isinstance(themselves, BaseProxy)
    assert themselves._getvalue() == [1, 2, 3, 4]
    assert type(numbers.last()) is int


def test_arguments_and_results_that_cannot_be_sent_are_errors(own: Any) -> None:
    """Ensure that the arguments to the methods of proxies are picklable. If some other exception is raised in the
    manager's process then this is converted into a RemoteError exception and is raised by _callmethod()."""
    numbers = own.Numbers()
    with pytest.raises(RemoteError, match="lock"):
        numbers.locks()
    with pytest.raises(TypeError, match="lock"):
        numbers.below(threading.Lock())
    assert numbers.last() == 3


def test_an_object_without_proxies_is_deleted(own: Any) -> None:
    """A proxy object uses a weakref callback so that when it gets garbage collected it deregisters itself from the
    manager which owns its referent. A shared object gets deleted from the manager process when there are no longer any
    proxies referring to it."""
    box, (there, here) = CONTEXT.Queue(), CONTEXT.Pipe()
    proxy = own.Numbers(box)
    there.send(proxy)
    other = here.recv()
    del proxy
    gc.collect()
    with pytest.raises(queue.Empty):
        box.get(timeout=0.05)
    assert other.last() == 3
    del other
    gc.collect()
    assert box.get(timeout=LONG) == "deleted"
