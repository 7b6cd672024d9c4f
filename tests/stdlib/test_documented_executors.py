"""What the standard library's documentation promises of executors and futures.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/concurrent.futures.html.
"""

from __future__ import annotations

import multiprocessing as mp
import operator
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    CancelledError,
    Future,
    InvalidStateError,
    ProcessPoolExecutor,
    as_completed,
    wait,
)
from concurrent.futures.process import BrokenProcessPool
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


def end(_: Any) -> None:
    os._exit(3)


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
