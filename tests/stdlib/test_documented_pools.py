"""What the standard library's documentation promises of pools.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import multiprocessing as mp
import multiprocessing.pool
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import dragon  # noqa: F401

LONG = 30
CONTEXT: Any = mp.get_context("dragon")


def double(x: Any) -> Any:
    return 2 * x


def add(a: Any, b: Any) -> Any:
    return a + b


def fail(x: Any) -> Any:
    raise ValueError(x)


def pid(_: Any = None) -> int:
    return os.getpid()


def end(_: Any) -> None:
    os._exit(3)


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    with CONTEXT.Pool(2) as pool:
        yield pool


def test_initializer() -> None:
    """If initializer is not None then each worker process will call initializer(*initargs) when it starts."""
    box = CONTEXT.Queue()
    with CONTEXT.Pool(2, box.put, ("started",)):
        assert [box.get(timeout=LONG) for _ in range(2)] == ["started"] * 2


def test_maxtasksperchild() -> None:
    """maxtasksperchild is the number of tasks a worker process can complete before it will exit and be replaced with a
    fresh worker process."""
    with CONTEXT.Pool(1, maxtasksperchild=2) as pool:
        assert len(set(pool.map(pid, range(6), chunksize=1))) == 3


def test_apply_blocks_and_runs_in_one_worker(pool: Any) -> None:
    """Call func with arguments args and keyword arguments kwds. It blocks until the result is ready. func is only
    executed in one of the workers of the pool."""
    assert pool.apply(add, (1,), {"b": 2}) == 3
    with pytest.raises(ValueError, match="on purpose"):
        pool.apply(fail, ("on purpose",))


def test_callbacks(pool: Any) -> None:
    """When the result becomes ready callback is applied to it, that is unless the call failed, in which case the
    error_callback is applied instead."""
    called, done = [], threading.Event()
    pool.apply_async(double, (2,), callback=called.append, error_callback=called.append).wait(LONG)
    pool.apply_async(fail, (1,), callback=called.append, error_callback=lambda error: done.set()).wait(LONG)
    assert done.wait(LONG)
    assert called == [4]


def test_map_chops_the_iterable_into_chunks(pool: Any) -> None:
    """This method chops the iterable into a number of chunks which it submits to the process pool as separate tasks."""
    assert pool.map(double, range(10), 3) == [2 * x for x in range(10)]
    assert pool.map(double, iter(range(3))) == [0, 2, 4]
    assert pool.map_async(double, []).get(LONG) == []


def test_imap_keeps_the_order_and_has_next_with_a_timeout(pool: Any) -> None:
    """If chunksize is 1 then the next() method of the iterator returned by the imap() method has an optional timeout
    parameter: next(timeout) will raise multiprocessing.TimeoutError if the result cannot be returned within timeout
    seconds. imap_unordered: the ordering of the results should be considered arbitrary."""
    results = pool.imap(time.sleep, [0, 30])
    assert results.next(LONG) is None
    with pytest.raises(mp.TimeoutError):
        results.next(0.01)
    pool.terminate()


def test_starmap() -> None:
    """The elements of the iterable are expected to be iterables that are unpacked as arguments."""
    with CONTEXT.Pool(2) as pool:
        assert pool.starmap(add, [(1, 2), (3, 4)]) == [3, 7]
        assert pool.starmap_async(add, [(1, 2)]).get(LONG) == [3]


def test_close_join_terminate() -> None:
    """Prevents any more tasks from being submitted to the pool. Once all the tasks have been completed the worker
    processes will exit. One must call close() or terminate() before using join()."""
    pool = CONTEXT.Pool(2)
    with pytest.raises(ValueError, match="still running"):
        pool.join()
    result = pool.map_async(double, range(3))
    pool.close()
    with pytest.raises(ValueError, match="not running"):
        pool.apply(double, (1,))
    pool.join()
    assert result.get() == [0, 2, 4]


def test_leaving_the_block_terminates() -> None:
    """Pool objects now support the context management protocol: __exit__() calls terminate()."""
    with CONTEXT.Pool(1) as pool:
        assert pool.apply(double, (1,)) == 2
    with pytest.raises(ValueError, match="not running"):
        pool.apply(double, (1,))


def test_async_results() -> None:
    """Return the result when it arrives. If timeout is not None and the result does not arrive within timeout seconds
    then multiprocessing.TimeoutError is raised. If the remote call raised an exception then that exception will be
    reraised by get(). successful(): will raise ValueError if the result is not ready."""
    with CONTEXT.Pool(1) as pool:
        result = pool.apply_async(time.sleep, (0.5,))
        with pytest.raises(mp.TimeoutError):
            result.get(0.01)
        with pytest.raises(ValueError, match="not ready"):
            result.successful()
        assert not result.ready()
        result.wait(LONG)
        assert result.ready()
        assert result.successful()
        failed = pool.apply_async(fail, (1,))
        failed.wait(LONG)
        assert not failed.successful()


def test_thread_pools_are_the_standard_librarys() -> None:
    """ThreadPool is the same API on threads; the start method does not matter to it."""
    with mp.pool.ThreadPool(2) as pool:
        assert pool.map(threading.get_ident, []) == []
        assert set(pool.map(pid, range(3))) == {os.getpid()}
