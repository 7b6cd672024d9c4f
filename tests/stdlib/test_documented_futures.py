"""Guarantees of the standard library's documentation for futures.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/concurrent.futures.html.
"""

from __future__ import annotations

import logging
import operator
import threading
import time
from collections.abc import Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    FIRST_EXCEPTION,
    CancelledError,
    Future,
    InvalidStateError,
    ProcessPoolExecutor,
    as_completed,
    wait,
)
from typing import Any

import pytest
from documented import CONTEXT, LONG


@pytest.fixture(scope="module")
def executor() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, CONTEXT) as executor:
        yield executor


def double(x: Any) -> Any:
    return 2 * x


def until_set(event: Any) -> bool:
    return bool(event.wait(LONG))


@pytest.fixture(scope="module")
def manager() -> Iterator[Any]:
    with CONTEXT.Manager() as manager:
        yield manager


@pytest.fixture
def done(executor: ProcessPoolExecutor) -> Future[Any]:
    """A call that has ended."""
    future = executor.submit(double, 1)
    assert future.result(LONG) == 2
    return future


@pytest.fixture
def busy(executor: ProcessPoolExecutor, manager: Any) -> Iterator[Future[bool]]:
    """A call that runs until the end of the test, with enough calls queued that the next one is pending."""
    event = manager.Event()
    future = executor.submit(until_set, event)
    behind = [executor.submit(double, n) for n in range(2)]
    while not future.running():
        time.sleep(0.001)
    yield future
    event.set()
    wait([future, *behind])


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


def test_the_error_of_a_call_is_raised_with_its_traceback(executor: ProcessPoolExecutor) -> None:
    """If the call raised an exception, this method will raise the same exception. exception(): return the
    exception raised by the call. If the call completed without raising, None is returned."""
    failed = executor.submit(operator.truediv, 1, 0)
    with pytest.raises(ZeroDivisionError) as caught:
        failed.result(LONG)
    assert "Traceback" in str(caught.value.__cause__)
    assert isinstance(failed.exception(), ZeroDivisionError)
    assert executor.submit(abs, 1).exception(LONG) is None


def test_result_raises_an_error_at_its_timeout(executor: ProcessPoolExecutor) -> None:
    """If the call hasn't completed in timeout seconds, then a TimeoutError will be raised."""
    future = executor.submit(time.sleep, 0.5)
    with pytest.raises(TimeoutError):
        future.result(0.01)
    assert future.result(LONG) is None


def test_a_pending_call_is_cancelled(executor: ProcessPoolExecutor, busy: Future[bool]) -> None:
    """Otherwise the call will be cancelled and the method will return True. cancelled(): return True if the call was
    successfully cancelled. done(): return True if the call was successfully cancelled or finished running."""
    future = executor.submit(double, 1)
    assert (future.cancelled(), future.done()) == (False, False)
    assert future.cancel() is True
    assert (future.cancelled(), future.done(), future.running()) == (True, True, False)


def test_a_running_call_is_not_cancelled(busy: Future[bool]) -> None:
    """running(): return True if the call is currently being executed and cannot be cancelled."""
    assert (busy.running(), busy.done(), busy.cancel(), busy.cancelled()) == (True, False, False, False)


@pytest.mark.parametrize("method", ["result", "exception"])
def test_a_cancelled_call_has_no_result(executor: ProcessPoolExecutor, busy: Future[bool], method: str) -> None:
    """If the future is cancelled before completing then CancelledError will be raised."""
    future = executor.submit(double, 1)
    future.cancel()
    with pytest.raises(CancelledError):
        getattr(future, method)()


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_exception_raises_an_error_at_its_timeout(busy: Future[bool], timeout: float) -> None:
    """If the call hasn't completed in timeout seconds, then a TimeoutError will be raised. timeout can be an int or
    float."""
    with pytest.raises(TimeoutError):
        busy.exception(timeout)


def test_a_callback_is_called_with_the_future(executor: ProcessPoolExecutor, busy: Future[bool]) -> None:
    """fn will be called, with the future as its only argument, when the future is cancelled or finishes running."""
    called: list[Any] = []
    cancelled = executor.submit(double, 1)
    cancelled.add_done_callback(called.append)
    cancelled.cancel()
    assert called == [cancelled]


def test_the_error_of_a_callback_is_logged(executor: ProcessPoolExecutor, caplog: pytest.LogCaptureFixture) -> None:
    """If the callable raises an Exception subclass, it will be logged and ignored."""
    logging.disable(logging.NOTSET)
    called, future = threading.Event(), executor.submit(double, 1)
    future.add_done_callback(lambda _: 1 // 0)
    future.add_done_callback(lambda _: called.set())
    assert called.wait(LONG)
    assert future.result() == 2
    assert "exception calling callback" in caplog.text


# ---- the module's functions


def test_wait_returns_each_future_once(executor: ProcessPoolExecutor, done: Future[Any], busy: Future[bool]) -> None:
    """Duplicate futures given to fs are removed and will be returned only once. Returns a named 2-tuple of sets. The
    first set, named done, contains the futures that completed (finished or cancelled futures) before the wait
    completed. The second set, named not_done, contains the futures that did not complete (pending or running)."""
    pending = executor.submit(double, 2)
    result = wait([busy, done, done, pending], timeout=0.01)
    assert (result.done, result.not_done) == ({done}, {busy, pending})
    assert wait([busy, pending, done], LONG, FIRST_COMPLETED).done == {done}


def test_wait_accepts_futures_of_several_executors(executor: ProcessPoolExecutor) -> None:
    """Wait for the Future instances (possibly created by different Executor instances) given by fs to complete."""
    with ProcessPoolExecutor(1, CONTEXT) as other:
        futures = {executor.submit(double, 1), other.submit(double, 2)}
        assert wait(futures, LONG) == (futures, set())
        assert {future.result() for future in as_completed(futures, LONG)} == {2, 4}


def test_first_exception_waits_for_all_futures_without_an_exception(executor: ProcessPoolExecutor) -> None:
    """If no future raises an exception then it is equivalent to ALL_COMPLETED."""
    futures = [executor.submit(double, n) for n in range(3)]
    assert wait(futures, LONG, FIRST_EXCEPTION).not_done == set()


def test_as_completed_yields_completed_futures_first_and_once(done: Future[Any], busy: Future[bool]) -> None:
    """Any futures given by fs that are duplicated will be returned once. Any futures that completed before
    as_completed() is called will be yielded first. The returned iterator raises a TimeoutError if __next__() is called
    and the result isn't available after timeout seconds from the original call to as_completed()."""
    futures = as_completed([busy, done, done, busy], timeout=0.05)
    assert next(futures) is done
    with pytest.raises(TimeoutError):
        next(futures)
