"""Guarantees of the standard library's documentation for proxies.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import gc
import os
import queue
import threading
from collections.abc import Iterator
from multiprocessing.managers import BaseManager, BaseProxy, RemoteError
from typing import Any

import pytest
from documented import CONTEXT, LONG


@pytest.fixture(scope="module")
def manager() -> Iterator[Any]:
    with CONTEXT.Manager() as manager:
        yield manager


def append(numbers: Any, nested: Any) -> None:
    numbers.append(os.getpid())
    nested[0].append("from a process")


def test_proxies_can_be_sent_to_processes_and_contain_each_other(manager: Any) -> None:
    """An important feature of proxy objects is that they are picklable so they can be passed between processes. As
    such, a referent can contain proxy objects. This permits nesting of these managed lists, dicts, and other proxy
    objects."""
    numbers, nested = manager.list(), manager.list([manager.list()])
    process = CONTEXT.Process(target=append, args=(numbers, nested))
    process.start()
    process.join(LONG)
    assert (list(numbers), list(nested[0])) == ([process.pid], ["from a process"])


def test_the_methods_of_lists_and_dictionaries(manager: Any) -> None:
    """list(), list(sequence): create a shared list object and return a proxy for it. dict(), dict(mapping),
    dict(sequence): create a shared dict object and return a proxy for it."""
    numbers = manager.list([3, 1, 2])
    numbers.sort()
    numbers.extend([5])
    numbers *= 2
    numbers += [9]
    assert (list(numbers), 9 in numbers, numbers.pop(), numbers.index(5), len(numbers)) == (
        [1, 2, 3, 5, 1, 2, 3, 5, 9],
        True,
        9,
        3,
        8,
    )
    names = manager.dict([("a", 1)])
    names.update(b=2)
    assert (names.pop("a"), names.setdefault("c", 3), dict(names), sorted(names.keys()), "b" in names) == (
        1,
        3,
        {"b": 2, "c": 3},
        ["b", "c"],
        True,
    )


def test_proxies_nest_and_changes_of_mutable_values_are_not_seen() -> None:
    """If standard (non-proxy) list or dict objects are contained in a referent, modifications to those mutable values
    will not be propagated through the manager. A shared object can contain multiple shared objects."""
    with CONTEXT.Manager() as manager:
        inner = manager.list([1])
        outer = manager.dict(inner=inner, plain=[1])
        outer["inner"].append(2)
        outer["plain"].append(2)
        assert (list(outer["inner"]), outer["plain"]) == ([1, 2], [1])
        assert repr(manager.list([1])).startswith("<ListProxy")
        assert str(manager.list([1])) == "[1]"


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


def test_a_result_that_cannot_be_sent_is_a_remote_error(own: Any) -> None:
    """If some other exception is raised in the manager's process then this is converted into a RemoteError exception
    and is raised by _callmethod()."""
    numbers = own.Numbers()
    with pytest.raises(RemoteError, match="lock"):
        numbers.locks()
    assert numbers.last() == 3


def test_an_object_without_proxies_is_deleted(own: Any) -> None:
    """A proxy object uses a weakref callback so that when it gets garbage collected it deregisters itself from the
    manager which owns its referent. A shared object gets deleted from the manager process when there are no longer any
    proxies referring to it."""
    box = CONTEXT.Queue()
    proxy = own.Numbers(box)
    other = own_copy(proxy)
    del proxy
    gc.collect()
    with pytest.raises(queue.Empty):
        box.get(timeout=0.05)
    assert other.last() == 3
    del other
    gc.collect()
    assert box.get(timeout=LONG) == "deleted"


def own_copy(proxy: Any) -> Any:
    there, here = CONTEXT.Pipe()
    there.send(proxy)
    return here.recv()


def test_several_processes_can_use_one_proxy(manager: Any) -> None:
    """(There is never a problem with different processes using the same proxy.)"""
    numbers = manager.list()
    processes = [CONTEXT.Process(target=append_many, args=(numbers,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LONG)
    assert len(numbers) == 60


def append_many(numbers: Any) -> None:
    for _ in range(20):
        numbers.append(1)


def test_arguments_that_cannot_be_pickled_are_an_error(manager: Any) -> None:
    """Ensure that the arguments to the methods of proxies are picklable."""
    numbers = manager.list()
    with pytest.raises(TypeError, match="lock"):
        numbers.append(threading.Lock())
    numbers.append(1)
    assert numbers[:] == [1]
