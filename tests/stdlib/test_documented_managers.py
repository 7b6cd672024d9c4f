"""What the standard library's documentation promises of managers.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import multiprocessing as mp
import os
from collections.abc import Iterator
from multiprocessing.managers import BaseManager, NamespaceProxy
from typing import Any

import pytest

import dragon  # noqa: F401

LONG = 30
CONTEXT: Any = mp.get_context("dragon")


@pytest.fixture(scope="module")
def manager() -> Iterator[Any]:
    with CONTEXT.Manager() as manager:
        yield manager


def test_a_manager_runs_in_a_process_of_its_own_until_it_is_shut_down() -> None:
    """Start a subprocess to start the manager. Stop the process used by the manager. This can be called multiple
    times."""
    manager = CONTEXT.Manager()
    numbers = manager.list([1])
    assert numbers._callmethod("__len__") == 1
    process = manager._process
    assert process.pid != os.getpid()
    manager.shutdown()
    manager.shutdown()
    assert not process.is_alive()


class Counter:
    def __init__(self, start: int) -> None:
        self.count = start

    def add(self, more: int) -> int:
        self.count += more
        return self.count

    def _hidden(self) -> str:
        return "hidden"


class Manager(BaseManager):
    pass


Manager.register("Counter", Counter)


Manager.register("Bare", Counter, exposed=("_hidden",))


def test_methods_that_are_exposed_are_called_in_the_manager() -> None:
    """exposed is used to specify a sequence of names of methods which proxies for this typeid should be allowed to
    access. In the case where no exposed list is specified, all "public methods" of the shared object will be
    accessible."""
    with Manager(ctx=CONTEXT) as manager:
        counter: Any = manager.Counter(5)  # type: ignore[attr-defined]
        assert (counter.add(2), counter.add(3)) == (7, 10)
        with pytest.raises(AttributeError):
            counter._hidden()
        bare: Any = manager.Bare(1)  # type: ignore[attr-defined]
        assert bare._hidden() == "hidden"
        with pytest.raises(AttributeError):
            bare.add(1)


def test_who_knows_the_key_connects_to_a_server() -> None:
    """Connect a local manager object to a remote manager process. (A wrong authkey raises AuthenticationError.)"""
    with Manager(("127.0.0.1", 0), b"key", ctx=CONTEXT) as server:
        other = Manager(server.address, b"key")
        other.connect()
        assert other.Counter(1).add(1) == 2  # type: ignore[attr-defined]
        with pytest.raises(mp.AuthenticationError):
            Manager(server.address, b"wrong").connect()


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


class Count:
    def __init__(self) -> None:
        self._count = 0

    def increment(self, by: int = 1) -> int:
        self._count += by
        return self._count

    def fail(self) -> None:
        raise KeyError("here")


class OwnManager(BaseManager):
    pass


OwnManager.register("Counter", Count)


def increment(counter: Any, count: int) -> None:
    for _ in range(count):
        counter.increment()


def test_registered_classes_are_shared() -> None:
    """A classmethod which can be used for registering a type or callable with the manager class. (The example of the
    documentation.) If an exception is raised by the call then it is re-raised by _callmethod()."""
    with OwnManager(ctx=CONTEXT) as manager:
        counter = manager.Counter()  # type: ignore[attr-defined]
        processes = [CONTEXT.Process(target=increment, args=(counter, 5)) for _ in range(2)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(LONG)
        assert counter.increment(0) == 10
        with pytest.raises(KeyError, match="here"):
            counter.fail()


def test_every_object_of_a_manager() -> None:
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
