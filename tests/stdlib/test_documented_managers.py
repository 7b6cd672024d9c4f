"""What the standard library's documentation promises of managers, proxies and futures, beyond test_documented_pools.py.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html and
concurrent.futures.html.
"""

from __future__ import annotations

import multiprocessing as mp
import operator
import os
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, InvalidStateError, ProcessPoolExecutor, wait
from multiprocessing.managers import BaseManager, BaseProxy, NamespaceProxy
from typing import Any

import pytest

import dragon  # noqa: F401

LONG = 30
CONTEXT: Any = mp.get_context("dragon")


@pytest.fixture(scope="module")
def manager() -> Iterator[Any]:
    with CONTEXT.Manager() as manager:
        yield manager


@pytest.fixture
def executor() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, CONTEXT) as executor:
        yield executor


# ---- managers


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


# ---- proxies


def test_a_proxy_looks_like_its_referent_to_str_alone(manager: Any) -> None:
    """Notice that applying str() to a proxy will return the representation of the referent, whereas applying
    repr() will return the representation of the proxy."""
    squares = manager.list([i * i for i in range(4)])
    assert str(squares) == "[0, 1, 4, 9]"
    assert repr(squares).startswith("<ListProxy object, typeid 'list' at 0x")


def test_proxies_are_not_compared_by_value(manager: Any) -> None:
    """The proxy types in multiprocessing do nothing to support comparisons by value."""
    assert manager.list([1, 2]) != [1, 2]
    assert manager.list([1, 2])[:] == [1, 2]


def test_a_method_is_called_by_name_and_the_referent_copied(manager: Any) -> None:
    """_callmethod(methodname[, args[, kwds]]): call and return the result of a method of the proxy's referent. An
    exception is reraised by it. _getvalue(): return a copy of the referent."""
    numbers = manager.list(range(5))
    assert numbers._callmethod("__getitem__", (slice(1, 3),)) == [1, 2]
    with pytest.raises(IndexError, match="list index out of range"):
        numbers._callmethod("__getitem__", (20,))
    assert numbers._getvalue() == [0, 1, 2, 3, 4]
    assert isinstance(numbers, BaseProxy)


def append(numbers: Any, nested: Any) -> None:
    numbers.append(os.getpid())
    nested[0].append("from a process")


def test_proxies_are_handed_to_processes_and_contain_each_other(manager: Any) -> None:
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


# ---- futures


def test_an_executor_takes_keywords_and_calls_in_another_process(executor: ProcessPoolExecutor) -> None:
    """Schedules the callable, fn, to be executed as fn(*args, **kwargs)."""
    assert executor.submit(int, "11", base=2).result(LONG) == 3
    assert executor.submit(os.getpid).result(LONG) != os.getpid()


def test_map_takes_several_iterables_and_chunks(executor: ProcessPoolExecutor) -> None:
    """Similar to map(fn, *iterables) except: the iterables are collected immediately rather than lazily; fn is
    executed asynchronously and several calls to fn may be made concurrently. If a fn call raises an exception,
    then that exception will be raised when its value is retrieved from the iterator."""
    assert list(executor.map(operator.add, range(10), range(5), chunksize=2)) == [0, 2, 4, 6, 8]
    results = executor.map(operator.truediv, [1, 1, 1], [1, 0, 1])
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_a_call_that_runs_or_has_ended_is_not_cancelled(executor: ProcessPoolExecutor) -> None:
    """Attempt to cancel the call. If the call is currently being executed or finished running and cannot be
    cancelled then the method will return False, otherwise the call will be cancelled and the method will return
    True."""
    done = executor.submit(abs, -1)
    assert done.result(LONG) == 1
    assert (done.cancel(), done.cancelled(), done.running(), done.done()) == (False, False, False, True)
    waiting: Future[Any] = Future()
    assert waiting.cancel()
    with pytest.raises(CancelledError):
        waiting.result()
    with pytest.raises(InvalidStateError):
        done.set_result(2)


def test_the_error_of_a_call_is_told_with_its_traceback(executor: ProcessPoolExecutor) -> None:
    """If the call raised an exception, this method will raise the same exception. exception(): return the
    exception raised by the call. If the call completed without raising, None is returned."""
    failed = executor.submit(operator.truediv, 1, 0)
    with pytest.raises(ZeroDivisionError) as caught:
        failed.result(LONG)
    assert "Traceback" in str(caught.value.__cause__)
    assert isinstance(failed.exception(), ZeroDivisionError)
    assert executor.submit(abs, 1).exception(LONG) is None


def test_a_result_that_does_not_come_in_time_raises(executor: ProcessPoolExecutor) -> None:
    """If the call hasn't completed in timeout seconds, then a TimeoutError will be raised."""
    future = executor.submit(_sleep, 0.5)
    with pytest.raises(TimeoutError):
        future.result(0.01)
    assert future.result(LONG) is None


def _sleep(seconds: float) -> None:
    threading.Event().wait(seconds)


def test_an_executor_that_is_left_has_done_all() -> None:
    """You can avoid having to call this method explicitly if you use the with statement, which will shutdown the
    Executor (waiting as if Executor.shutdown() were called with wait set to True)."""
    with ProcessPoolExecutor(2, CONTEXT) as executor:
        futures = [executor.submit(_sleep, 0.05) for _ in range(4)]
    assert all(future.done() for future in futures)
    assert wait(futures).not_done == set()
