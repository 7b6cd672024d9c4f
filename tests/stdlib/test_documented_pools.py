"""What the standard library's documentation promises of pools, executors, managers and shared memory.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html,
concurrent.futures.html and multiprocessing.shared_memory.html.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import multiprocessing.managers
import multiprocessing.pool
import operator
import os
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.managers import BaseManager, SharedMemoryManager
from multiprocessing.shared_memory import ShareableList, SharedMemory
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


# ---- pools


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


# ---- executors


@pytest.fixture
def executor() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=CONTEXT) as executor:
        yield executor


def test_submit_returns_a_future(executor: ProcessPoolExecutor) -> None:
    """Schedules the callable, fn, to be executed as fn(*args, **kwargs) and returns a Future object representing the
    execution of the callable."""
    assert executor.submit(pow, 323, 1235).result(LONG) == 323**1235
    assert isinstance(executor.submit(fail, 1).exception(LONG), ValueError)


def test_map_times_out_and_raises_in_its_place(executor: ProcessPoolExecutor) -> None:
    """The returned iterator raises a TimeoutError if __next__() is called and the result isn't available after timeout
    seconds from the original call. If a fn call raises an exception, then that exception will be raised when its value
    is retrieved from the iterator."""
    assert list(executor.map(add, range(5), range(5), chunksize=2)) == [0, 2, 4, 6, 8]
    with pytest.raises(TimeoutError):
        list(executor.map(time.sleep, [1], timeout=0.05))
    results = executor.map(operator.truediv, [1, 1], [1, 0])
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_after_shutdown_nothing_is_taken() -> None:
    """Calls to Executor.submit() and Executor.map() made after shutdown will raise RuntimeError. If cancel_futures is
    True, this method will cancel all pending futures that the executor has not started running."""
    executor = ProcessPoolExecutor(1, mp_context=CONTEXT)
    running = executor.submit(time.sleep, 0.2)
    waiting = [executor.submit(double, n) for n in range(20)]
    executor.shutdown(cancel_futures=True)
    assert running.done()
    assert any(future.cancelled() for future in waiting)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(double, 1)


def test_an_abrupt_end_breaks_the_executor() -> None:
    """When one of the worker processes terminates abruptly, a BrokenProcessPool error is now raised."""
    with ProcessPoolExecutor(1, mp_context=CONTEXT) as executor:
        with pytest.raises(BrokenProcessPool):
            executor.submit(end, 1).result(LONG)
        with pytest.raises(BrokenProcessPool):
            executor.submit(double, 1)


def test_an_initializer_that_raises_breaks_it() -> None:
    """Should initializer raise an exception, all currently pending jobs will raise a BrokenProcessPool."""
    executor = ProcessPoolExecutor(1, mp_context=CONTEXT, initializer=fail_quietly)
    with executor, pytest.raises(BrokenProcessPool):
        executor.submit(double, 1).result(LONG)


def fail_quietly() -> None:
    import logging

    logging.disable()
    raise ValueError


def test_max_workers_must_be_positive() -> None:
    """If max_workers is less than or equal to 0, then a ValueError will be raised."""
    with pytest.raises(ValueError, match="max_workers"):
        ProcessPoolExecutor(0, mp_context=CONTEXT)


def test_waiting_for_futures(executor: ProcessPoolExecutor) -> None:
    """wait(): return_when must be one of FIRST_COMPLETED, FIRST_EXCEPTION, ALL_COMPLETED. as_completed(): yields
    futures as they complete."""
    slow, quick = executor.submit(time.sleep, 1), executor.submit(double, 2)
    done, _ = wait([slow, quick], LONG, FIRST_COMPLETED)
    assert quick in done
    failed = executor.submit(fail, 1)
    assert failed in wait([failed, executor.submit(double, 1)], LONG, FIRST_EXCEPTION).done
    assert wait([slow, quick], LONG, ALL_COMPLETED).not_done == set()
    assert {f.result() for f in as_completed([executor.submit(double, n) for n in range(3)], LONG)} == {0, 2, 4}


def test_callbacks_of_futures(executor: ProcessPoolExecutor) -> None:
    """Added callables are called in the order that they were added and are always called in a thread belonging to the
    process that added them. If the future has already completed or been cancelled, fn will be called immediately."""
    called: list[int] = []
    done = threading.Event()
    future = executor.submit(double, 1)
    for number in range(3):
        future.add_done_callback(lambda _, number=number: called.append(number))
    future.add_done_callback(lambda _: done.set())
    assert done.wait(LONG)
    future.add_done_callback(lambda _: called.append(3))
    assert called == [0, 1, 2, 3]


# ---- managers


class Counter:
    def __init__(self) -> None:
        self._count = 0

    def increment(self, by: int = 1) -> int:
        self._count += by
        return self._count

    def fail(self) -> None:
        raise KeyError("here")


class OwnManager(BaseManager):
    pass


OwnManager.register("Counter", Counter)


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


# ---- shared memory


def test_shared_memory_has_a_name_and_a_size() -> None:
    """Creates a new shared memory block or attaches to an existing one. The size may be larger than requested."""
    memory = SharedMemory(create=True, size=10)
    try:
        other = SharedMemory(memory.name)
        memory.buf[:3] = b"abc"
        assert bytes(other.buf[:3]) == b"abc"
        assert other.size >= 10
        other.close()
        with pytest.raises(FileExistsError):
            SharedMemory(memory.name, create=True, size=1)
    finally:
        memory.close()
        memory.unlink()
    with pytest.raises(FileNotFoundError):
        SharedMemory(memory.name)


def test_shareable_lists() -> None:
    """Provides a mutable list-like object where all values stored within are stored in a shared memory block. They
    cannot change their overall length and do not support slicing."""
    items = ShareableList(["howdy", b"HoWdY", -273.154, 100, None, True, 42])
    try:
        other = ShareableList(name=items.shm.name)
        items[3] = 5
        assert (other[3], len(other), other.count(True), other.index(42)) == (5, 7, 1, 6)
        with pytest.raises(ValueError, match="exceeds"):
            items[0] = "much longer than before"
        other.shm.close()
    finally:
        items.shm.close()
        items.shm.unlink()


def test_shared_memory_managers() -> None:
    """Once a SharedMemoryManager's shutdown() has been called, all blocks that it made are released."""
    with SharedMemoryManager(ctx=CONTEXT) as manager:
        name = manager.SharedMemory(20).name
        assert manager.ShareableList(range(3))[2] == 2
    with warnings.catch_warnings(), contextlib.suppress(FileNotFoundError):
        SharedMemory(name)
        pytest.fail(f"{name} is still there")
