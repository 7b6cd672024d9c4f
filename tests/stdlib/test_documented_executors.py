"""Guarantees of the standard library's documentation for executors and futures.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/concurrent.futures.html.
"""

from __future__ import annotations

import logging
import multiprocessing as mp
import operator
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    CancelledError,
    ProcessPoolExecutor,
    as_completed,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

import pytest
from documented import CONTEXT, LONG

if TYPE_CHECKING:
    from conftest import Site


def double(x: Any) -> Any:
    return 2 * x


def add(a: Any, b: Any) -> Any:
    return a + b


def fail(x: Any) -> Any:
    raise ValueError(x)


def end(_: Any) -> None:
    os._exit(3)


@pytest.fixture
def executor() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=CONTEXT) as executor:
        yield executor


def test_submit_returns_a_future(executor: ProcessPoolExecutor) -> None:
    """Schedules the callable, fn, to be executed as fn(*args, **kwargs) and returns a Future object representing the
    execution of the callable. Only picklable objects can be executed and returned. (A pool of at most max_workers
    processes, which live as long as the pool.)"""
    assert executor.submit(pow, 323, 1235).result(LONG) == 323**1235
    assert isinstance(executor.submit(fail, 1).exception(LONG), ValueError)
    with pytest.raises(TypeError, match="lock"):
        executor.submit(threading.Lock).result(LONG)
    with pytest.raises(TypeError, match="lock"):
        executor.submit(double, threading.Lock()).result(LONG)
    assert 1 <= len({os.getpid(), *executor.map(pid_of_this, range(30))}) - 1 <= 2


def test_map_raises_the_timeout_or_the_error_of_a_call(executor: ProcessPoolExecutor) -> None:
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


def test_an_executor_accepts_no_calls_after_shutdown() -> None:
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


def test_wait_and_as_completed_return_completed_futures(executor: ProcessPoolExecutor) -> None:
    """wait(): return_when must be one of FIRST_COMPLETED, FIRST_EXCEPTION, ALL_COMPLETED. as_completed(): yields
    futures as they complete."""
    slow, quick = executor.submit(time.sleep, 1), executor.submit(double, 2)
    done, _ = wait([slow, quick], LONG, FIRST_COMPLETED)
    assert quick in done
    failed = executor.submit(fail, 1)
    assert failed in wait([failed, executor.submit(double, 1)], LONG, FIRST_EXCEPTION).done
    assert wait([slow, quick], LONG, ALL_COMPLETED).not_done == set()
    assert {f.result() for f in as_completed([executor.submit(double, n) for n in range(3)], LONG)} == {0, 2, 4}


def test_a_chunk_is_one_task() -> None:
    """This method chops iterables into a number of chunks which it submits to the pool as separate tasks. The
    (approximate) size of these chunks can be specified by setting chunksize to a positive integer."""
    with ProcessPoolExecutor(1, CONTEXT, max_tasks_per_child=1) as executor:
        pids = list(executor.map(pid_of_this, range(4), chunksize=2))
    assert (pids[0] == pids[1], pids[2] == pids[3], len(set(pids))) == (True, True, 2)


def pid_of_this(_: Any = None) -> int:
    return os.getpid()


def test_a_shutdown_waits_for_all_calls() -> None:
    """If wait is True then this method will not return until all the pending futures are done executing and the
    resources associated with the executor have been freed."""
    before = set(mp.active_children())
    executor = ProcessPoolExecutor(1, CONTEXT)
    futures = [executor.submit(time.sleep, 0.02) for _ in range(3)]
    executor.shutdown()
    assert all(future.done() for future in futures)
    assert set(mp.active_children()) <= before


def test_a_shutdown_without_wait_returns_immediately() -> None:
    """If wait is False then this method will return immediately and the resources associated with the executor will be
    freed when all pending futures are done executing."""
    event = CONTEXT.Manager().Event()
    executor = ProcessPoolExecutor(1, CONTEXT)
    future = executor.submit(event.wait, LONG)
    executor.shutdown(wait=False)
    assert not future.done()
    event.set()
    assert future.result(LONG) is True


def test_a_program_ends_when_all_calls_are_done(site: Site) -> None:
    """Regardless of the value of wait, the entire Python program will not exit until all pending futures are done
    executing. (mp_context: if None or not given, the default multiprocessing context is used.)"""
    result = site.python("""
        import multiprocessing as mp
        import time
        from concurrent.futures import ProcessPoolExecutor

        import dragon

        def work(text):
            time.sleep(0.05)
            return f"{text} by {type(mp.current_process()).__name__}"

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            executor = ProcessPoolExecutor(1)
            for text in ("first", "second"):
                executor.submit(work, text).add_done_callback(lambda future: print(future.result(), flush=True))
            executor.shutdown(wait=False)
            print("end", flush=True)
    """)
    assert result.stdout.splitlines() == ["end", "first by DragonProcess", "second by DragonProcess"], result.stderr


def test_an_initializer_is_called_in_each_worker_and_its_error_breaks_the_executor() -> None:
    """initializer is called at the start of each worker process; initargs is a tuple of arguments passed to it. Should
    initializer raise an exception, all currently pending jobs will raise a BrokenProcessPool, as well as any attempt to
    submit more jobs to the pool."""
    box = CONTEXT.Queue()
    with ProcessPoolExecutor(1, CONTEXT, tell_and_fail, (box,)) as executor:
        futures = [executor.submit(double, n) for n in range(2)]
        assert box.get(timeout=LONG) == "started"
        for future in futures:
            assert isinstance(future.exception(LONG), BrokenProcessPool)
        with pytest.raises(BrokenProcessPool):
            executor.submit(double, 1)


def tell_and_fail(box: Any) -> None:
    logging.disable()
    box.put("started")
    raise ValueError


@pytest.mark.skipif(sys.version_info < (3, 14), reason="there from Python 3.14 on")
@pytest.mark.parametrize("method", ["terminate_workers", "kill_workers"])
def test_terminate_workers_and_kill_workers_end_the_workers(method: str) -> None:
    """Attempt to terminate (kill) all living worker processes immediately. Internally, it will also call
    Executor.shutdown() to ensure that all other resources associated with the executor are freed."""
    executor = ProcessPoolExecutor(1, CONTEXT)
    assert executor.submit(double, 1).result(LONG) == 2
    future = executor.submit(time.sleep, 60)
    getattr(executor, method)()
    with pytest.raises((BrokenProcessPool, CancelledError)):
        future.result(LONG)
    with pytest.raises(RuntimeError):
        executor.submit(double, 1)
