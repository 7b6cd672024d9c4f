"""An executor with the interface of concurrent.futures, on workers of the run."""

from __future__ import annotations

import functools
import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import util as mp_util
from typing import Any, TypeVar

from dragon import cpython
from dragon.infrastructure.policy import Policy
from dragon.native.machine import cpu_count
from dragon.native.workers import WorkerLostError
from dragon.workflows.batch.call import NEVER, Call, Kind, packed
from dragon.workflows.batch.conditions import Demand, RetryPolicy
from dragon.workflows.batch.crew import Crew
from dragon.workflows.batch.errors import BatchError
from dragon.workflows.batch.order import Entry
from dragon.workflows.batch.outcome import Failure
from dragon.workflows.batch.scheduler import Scheduler
from dragon.workflows.batch.worker import Plan

__all__ = ["DragonExecutor", "LostTaskError"]

_T = TypeVar("_T")


class LostTaskError(WorkerLostError, BrokenProcessPool):
    """Raised for a task whose worker died while it ran. Another worker replaces it; other tasks are not affected."""


_CANCELLED = Failure.of(CancelledError())


class _Future(Future[_T]):
    """A future whose task can be cancelled until a worker has begun it."""

    # Set until the call has ended: so a pending future keeps its executor alive.
    _entry: Entry | None = None
    _executor: DragonExecutor | None = None

    def cancel(self) -> bool:
        """Cancel the call. Returns whether it will not run; one that runs or has ended cannot be cancelled."""
        if self.cancelled():
            return True
        entry, executor = self._entry, self._executor
        if entry is None or executor is None:
            return False
        if executor._scheduler.cancel(entry, _CANCELLED, running=False) is None:
            return False
        super().cancel()
        return True

    def running(self) -> bool:
        """Return whether a worker has begun it."""
        entry, executor = self._entry, self._executor
        return entry is not None and executor is not None and executor._scheduler.runs(entry)


class DragonExecutor(Executor):
    """Runs calls in worker processes, on all nodes of the run.

    Args:
        max_workers: number of workers (default: one per CPU of the run).
        initializer, initargs: called in every worker first. If it raises, the executor is broken.
        policy: where the workers run: a policy for all, or a list with one for each worker, which determines their
            number. Workers whose policy names no node are distributed round robin over the nodes.
        retries, retry_on, backoff: how often, after which exceptions, and after how many seconds a call is tried again,
            as in Batch.options().

    A program that ends without shutdown() waits for its calls first.

    A task whose worker dies raises LostTaskError, which is a BrokenExecutor; the other tasks continue. When no worker
    can run, every future raises BrokenProcessPool, and so does submit(). Raises ValueError for less than one worker.

    Examples:
        >>> from dragon.workflows.executor import DragonExecutor
        >>> with DragonExecutor(max_workers=2) as executor:
        ...     executor.submit(divmod, 7, 2).result()
        ...     list(executor.map(abs, [-1, 2, -3]))
        (3, 1)
        [1, 2, 3]
    """

    def __init__(
        self,
        max_workers: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Iterable[Any] = (),
        *,
        policy: Policy | list[Policy] | None = None,
        retries: int = 0,
        retry_on: object = Exception,
        backoff: float = 0.0,
    ) -> None:
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        if isinstance(policy, list):
            if max_workers is not None and max_workers != len(policy):
                raise ValueError(f"there are {len(policy)} policies for {max_workers} workers")
            policies: list[Policy | None] = [*policy]
        else:
            policies = [policy] * (cpu_count() if max_workers is None else max_workers)
        if not policies:
            raise ValueError("max_workers must be at least 1")
        self._retry = retry if (retry := RetryPolicy.checked(retries, retry_on, backoff)).retries else None
        self._max_workers = len(policies)
        self._numbers = itertools.count()
        self._futures: dict[int, _Future[Any]] = {}
        self._ended: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        plan = Plan(policies, None if initializer is None else (initializer, tuple(initargs)))
        self._scheduler = Scheduler(functools.partial(Crew, plan), len(policies), ended=self._ended.put)
        # Users' callbacks run in a separate thread: they may wait for locks, including those of threads that submit.
        self._thread = threading.Thread(
            target=_settle, args=(self._ended, self._futures, self._scheduler), name="dragon-executor", daemon=True
        )
        self._thread.start()
        self._end = mp_util.Finalize(self, _end, (self._scheduler, self._ended, self._thread), exitpriority=15)

    def options(
        self,
        *,
        retries: int = 0,
        retry_on: object = Exception,
        backoff: float = 0.0,
        cpus: int | None = None,
        gpus: int = 0,
        memory: int | str = 0,
        on_node: str | None = None,
    ) -> Calls:
        """Return options, to submit a call with them by `.submit()`. They are those of Batch.options()."""
        retry = RetryPolicy.checked(retries, retry_on, backoff)
        demand = Demand.checked(cpus, gpus, memory, on_node)
        return Calls(functools.partial(self._submit, retry if retry.retries else self._retry, demand))

    def submit(self, fn: Callable[..., _T], /, *args: object, **kwargs: object) -> Future[_T]:
        """Submit the call `fn(*args, **kwargs)`, and return its future.

        Raises what pickling the call raises, RuntimeError after shutdown(), BrokenProcessPool if the executor is
        broken.
        """
        return self._submit(self._retry, None, fn, args, kwargs)

    def _submit(
        self,
        retry: RetryPolicy | None,
        demand: Demand | None,
        fn: Callable[..., _T],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> Future[_T]:
        if self._closed and not self._scheduler.broken:
            raise RuntimeError("cannot schedule new futures after shutdown")
        data, buffers, handles = packed((fn, args, kwargs), retry is not None)
        call = Call(Kind.FUNCTION, data, buffers, [], [], "", NEVER, (None, None), 1, retry, b"", handles, demand)
        future: _Future[_T] = _Future()
        number = next(self._numbers)
        self._futures[number] = future
        try:
            entry = self._scheduler.submit((0, number), call, [])
        except BatchError as error:
            self._futures.pop(number, None)
            if self._scheduler.broken:
                raise BrokenProcessPool(str(error)) from None
            raise RuntimeError("cannot schedule new futures after shutdown") from None
        except ValueError:
            self._futures.pop(number, None)
            raise
        future._entry, future._executor = entry, self
        return future

    def map(
        self, fn: Callable[..., _T], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[_T]:
        """Return an iterator over `fn` of the elements of each iterable, in order; `chunksize` calls form a task.

        The iterator raises what a call raised, and TimeoutError if a result is not available `timeout` seconds after
        this call. Calls that have not begun are cancelled when the iterator is closed.
        """
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        elements = zip(*iterables, strict=False)
        chunks = iter(lambda: tuple(itertools.islice(elements, chunksize)), ())
        results = super().map(functools.partial(_call_each, fn), chunks, timeout=timeout)
        return itertools.chain.from_iterable(results)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls, and end the workers when all are done. With `wait` this returns after that."""
        with self._closing:
            self._closed = True
            if cancel_futures:
                for future in list(self._futures.values()):
                    future.cancel()
            if wait:
                self._finish()
            elif self._scheduler.unfinished():
                # Not a daemon: the program does not end before its calls have.
                threading.Thread(target=self._finish, name="dragon-executor-shutdown").start()
            else:
                self._finish()

    def terminate_workers(self) -> None:
        """End the workers now; unfinished calls raise BrokenProcessPool."""
        self._closed = True
        self._scheduler.give_up("the workers were terminated")
        self._end()

    def _finish(self) -> None:
        _await_all(self._scheduler)
        if self._end.still_active():
            self._scheduler.finish()
            self._end()
        if threading.current_thread() is not self._thread:
            self._thread.join()


class Calls:
    """The options of calls, with which they are submitted. Made by DragonExecutor.options()."""

    def __init__(self, submit: Callable[..., Future[Any]]) -> None:
        self._submit = submit

    def submit(self, fn: Callable[..., _T], /, *args: object, **kwargs: object) -> Future[_T]:
        """Submit the call `fn(*args, **kwargs)`, and return its future, as DragonExecutor.submit() does."""
        return self._submit(fn, args, kwargs)


def _call_each(fn: Callable[..., _T], chunk: tuple[tuple[Any, ...], ...]) -> list[_T]:
    return [fn(*args) for args in chunk]


def _settle(ended: queue.SimpleQueue[Entry | None], futures: dict[int, _Future[Any]], scheduler: Scheduler) -> None:
    """Set the results of the futures of tasks that have ended."""
    while (entry := ended.get()) is not None:
        future = futures.pop(entry.key[1], None)
        if future is None:
            continue  # submitting it has failed
        future._entry = future._executor = None
        if entry.outcome is _CANCELLED:
            Future.cancel(future)
            future.set_running_or_notify_cancel()
            continue
        assert entry.outcome is not None
        try:
            value = entry.outcome.get()
        except BaseException as error:
            future.set_exception(_as_in_pools(error, scheduler.broken))
        else:
            future.set_result(value)
        del future, entry


def _as_in_pools(error: BaseException, broken: str) -> BaseException:
    if isinstance(error, WorkerLostError):
        return LostTaskError(str(error))
    if isinstance(error, BatchError) and broken:
        return BrokenProcessPool(str(error))
    return error


def _end(scheduler: Scheduler, ended: queue.SimpleQueue[Entry | None], thread: threading.Thread) -> None:
    """End an executor."""
    exiting = cpython.is_exiting()
    try:
        if exiting:
            _await_all(scheduler)
    finally:
        scheduler.end()
        ended.put(None)
    if exiting:
        thread.join()  # which calls the last callbacks


def _await_all(scheduler: Scheduler) -> None:
    while unfinished := scheduler.unfinished():
        for entry in unfinished:
            entry.wait(None)
