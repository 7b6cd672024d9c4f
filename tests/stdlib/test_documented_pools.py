"""Guarantees of the standard library's documentation for pools.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import gc
import multiprocessing as mp
import multiprocessing.pool
import os
import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documented import CONTEXT, LONG


def double(x: Any) -> Any:
    return 2 * x


def add(a: Any, b: Any) -> Any:
    return a + b


def fail(x: Any) -> Any:
    raise ValueError(x)


def pid(_: Any = None) -> int:
    return os.getpid()


@pytest.fixture(scope="module")
def pool() -> Iterator[Any]:
    with CONTEXT.Pool(2) as pool:
        yield pool


def test_an_initializer_is_called_in_each_worker_of_a_pool() -> None:
    """If initializer is not None then each worker process will call initializer(*initargs) when it starts."""
    box = CONTEXT.Queue()
    with CONTEXT.Pool(2, box.put, ("started",)):
        assert [box.get(timeout=LONG) for _ in range(2)] == ["started"] * 2


@pytest.mark.parametrize(("most", "workers"), [(2, 3), (None, 1)])
def test_a_worker_is_replaced_after_maxtasksperchild_tasks(most: int | None, workers: int) -> None:
    """maxtasksperchild is the number of tasks a worker process can complete before it will exit and be replaced with a
    fresh worker process. The default is None, which means worker processes will live as long as the pool. (One worker
    returns its results in order.)"""
    with CONTEXT.Pool(1, maxtasksperchild=most) as pool:
        assert len(set(pool.map(pid, range(6), chunksize=1))) == workers
        assert list(pool.imap_unordered(double, range(50))) == [2 * x for x in range(50)]


def test_apply_blocks_and_runs_in_one_worker(pool: Any) -> None:
    """Call func with arguments args and keyword arguments kwds. It blocks until the result is ready. func is only
    executed in one of the workers of the pool. If the remote call raised an exception then that exception will be
    reraised."""
    assert pool.apply(add, (1,), {"b": 2}) == 3
    assert pool.apply(pid) in {child.pid for child in mp.active_children()}
    with pytest.raises(ValueError, match="on purpose"):
        pool.apply(fail, ("on purpose",))
    with pytest.raises(ValueError, match="0"):
        pool.map(fail, [0])
    with pytest.raises(ValueError, match="1"):
        next(pool.imap(fail, [1]))


def test_map_chops_the_iterable_into_chunks(pool: Any) -> None:
    """This method chops the iterable into a number of chunks which it submits to the process pool as separate tasks.
    starmap(): the elements of the iterable are expected to be iterables that are unpacked as arguments."""
    assert pool.map(double, range(10), 3) == [2 * x for x in range(10)]
    assert pool.map(double, iter(range(3))) == [0, 2, 4]
    assert pool.map_async(double, []).get(LONG) == []
    assert sorted(pool.imap_unordered(double, range(10))) == [2 * x for x in range(10)]
    assert pool.starmap(add, [(1, 2), (3, 4)]) == [3, 7]
    assert pool.starmap_async(add, [(1, 2)]).get(LONG) == [3]


def test_imap_keeps_the_order_and_has_next_with_a_timeout(pool: Any) -> None:
    """If chunksize is 1 then the next() method of the iterator returned by the imap() method has an optional timeout
    parameter: next(timeout) will raise multiprocessing.TimeoutError if the result cannot be returned within timeout
    seconds."""
    results = pool.imap(time.sleep, [0, 0.5])
    assert results.next(LONG) is None
    with pytest.raises(mp.TimeoutError):
        results.next(0.01)
    assert results.next(LONG) is None


def test_a_closed_pool_completes_its_tasks_and_accepts_no_more() -> None:
    """Prevents any more tasks from being submitted to the pool. Once all the tasks have been completed the worker
    processes will exit. One must call close() or terminate() before using join(). __exit__() calls terminate()."""
    with CONTEXT.Pool(2) as pool:
        with pytest.raises(ValueError, match="still running"):
            pool.join()
        result = pool.map_async(double, range(3))
        pool.close()
        with pytest.raises(ValueError, match="not running"):
            pool.apply(double, (1,))
        pool.join()
        assert result.get() == [0, 2, 4]
    with CONTEXT.Pool(1) as pool:
        pass
    with pytest.raises(ValueError, match="not running"):
        pool.apply(double, (1,))


def test_an_async_result_has_a_state_and_a_timeout() -> None:
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


def test_a_pool_belongs_to_its_process(pool: Any) -> None:
    """Note that the methods of a pool should only ever be used by the process which created it. (It cannot be given to
    another.)"""
    with pytest.raises(NotImplementedError, match="pool objects cannot be passed between processes or pickled"):
        pool.apply(repr, (pool,))


def test_a_pool_has_one_worker_per_cpu_by_default() -> None:
    """processes is the number of worker processes to use. If processes is None then the number returned by
    os.process_cpu_count() is used."""
    before = set(mp.active_children())
    with CONTEXT.Pool():
        assert len(set(mp.active_children()) - before) == CONTEXT.cpu_count()


def test_the_pool_class_accepts_a_context() -> None:
    """context can be used to specify the context used for starting the worker processes."""
    with mp.pool.Pool(1, context=CONTEXT) as pool:
        assert pool.apply(start_method_of_this) == "dragon"


def start_method_of_this() -> Any:
    return type(mp.current_process())._start_method  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("method", "given", "result"),
    [("apply_async", (2,), 4), ("map_async", [1, 2], [2, 4]), ("starmap_async", [(1,)], [2])],
)
def test_a_callback_is_called_once_with_the_result_or_the_error(
    pool: Any, method: str, given: Any, result: Any
) -> None:
    """When the result becomes ready callback is applied to it, that is unless the call failed, in which case the
    error_callback is applied instead."""
    called, errors = queue.SimpleQueue(), queue.SimpleQueue()  # type: ignore[var-annotated]
    getattr(pool, method)(double, given, callback=called.put, error_callback=errors.put)
    assert called.get(timeout=LONG) == result
    getattr(pool, method)(fail, given, callback=called.put, error_callback=errors.put)
    assert isinstance(errors.get(timeout=LONG), ValueError)
    assert (called.empty(), errors.empty()) == (True, True)


def test_terminate_ends_a_pool_without_completing_its_tasks(tmp_path: Path) -> None:
    """Stops the worker processes immediately without completing outstanding work."""
    pool = CONTEXT.Pool(1)
    pool.apply_async(time.sleep, (60,))
    pool.apply_async((tmp_path / "done").touch)
    pool.terminate()
    pool.join()
    assert not (tmp_path / "done").exists()


@pytest.mark.filterwarnings("ignore:unclosed running multiprocessing pool:ResourceWarning")
def test_a_pool_is_terminated_when_it_is_garbage_collected() -> None:
    """When the pool object is garbage collected terminate() will be called immediately."""
    before = set(mp.active_children())
    pool = CONTEXT.Pool(1)
    assert pool.apply(double, (2,)) == 4
    (worker,) = set(mp.active_children()) - before
    del pool
    gc.collect()
    worker.join(LONG)
    assert not worker.is_alive()
