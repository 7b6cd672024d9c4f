"""A pool of worker processes."""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import partial
from multiprocessing import util as mp_util
from multiprocessing.pool import mapstar, starmapstar  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, ClassVar, Self

from dragon.infrastructure.generic import K, V
from dragon.infrastructure.plain_number import plain_number
from dragon.infrastructure.policy import Policy
from dragon.native import machine
from dragon.native.collecting import Collector
from dragon.native.feeding import Feeding, Task, Workers
from dragon.native.process import Process
from dragon.native.results import ApplyResult, Elements, IMapIterator, IMapUnorderedIterator, MapResult
from dragon.native.workers import WorkerLostError, channel_of_results, pass_on_end, work
from dragon.runtime import placement
from dragon.runtime.arguments import checked_seconds
from dragon.runtime.handle import Channel, Words
from dragon.runtime.placement import one_warning
from dragon.runtime.run import identity, this_run

if TYPE_CHECKING:
    from dragon.native.feeding import WorkerProcess

__all__ = ["Pool", "WorkerLostError"]

RUN, CLOSE, TERMINATE = "RUN", "CLOSE", "TERMINATE"
_AT_HAND = (list, tuple, range, set, frozenset, dict, str, bytes, deque)  # types whose iteration never blocks
_DEFAULT_PATIENCE = 60.0  # seconds
_EXIT_TIMEOUT_S = 5.0  # seconds for the workers of a pool that is ended without a call of terminate()
_numbers = itertools.count(1)


class Pool:
    """Worker processes that share tasks.

    Args:
        processes: the number of workers (default: one per CPU of the run).
        initializer, initargs: called in every worker before its first task. If it raises, every task raises that error.
        maxtasksperchild: the number of tasks after which a worker is replaced by a new one.
        policy: where the workers run: a policy, or a list of policies with `processes_per_policy` workers each. Workers
            whose policy does not name a node are distributed round robin over the nodes.
        processes_per_policy: the number of workers for each policy of a list (default: 1).

    A worker that dies is replaced, and the result of its task is a WorkerLostError. Leaving a `with` block terminates
    the pool. Raises ValueError for less than one process, RuntimeError for `processes` beside a list of policies.

    Examples:
        >>> from dragon.native import Pool
        >>> with Pool(2) as pool:
        ...     pool.map(abs, [-1, 2, -3])
        ...     pool.apply_async(divmod, (7, 2)).get(timeout=60)
        [1, 2, 3]
        (3, 1)
    """

    _apply_result: ClassVar[type[ApplyResult]] = ApplyResult
    _map_result: ClassVar[type[MapResult]] = MapResult
    _imap: ClassVar[type[IMapIterator]] = IMapIterator
    _imap_unordered: ClassVar[type[IMapUnorderedIterator]] = IMapUnorderedIterator
    _wrap_exceptions: ClassVar[bool] = True

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        *,
        policy: Policy | list[Policy] | None = None,
        processes_per_policy: int | None = None,
    ) -> None:
        self._state = TERMINATE
        self._policies = self._choose_policies(processes, policy, processes_per_policy)
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        maxtasksperchild = plain_number(maxtasksperchild)
        if maxtasksperchild is not None and (not isinstance(maxtasksperchild, int) or maxtasksperchild <= 0):
            raise ValueError("maxtasksperchild must be a positive int or None")
        count, maker = len(self._policies), identity().puid  # the run has begun
        self._results, self._doing = channel_of_results(), Words(count)
        results, doing = self._results._name(), self._doing._name()
        self._tasks = Channel._on(this_run().node, maker=maker, results=results, doing=doing)
        channels, how = (self._tasks, self._results, self._doing), (maxtasksperchild, self._wrap_exceptions)
        self._collector = collector = Collector(self._results)
        self._feeding = Feeding(self._tasks, collector)
        self._broken: list[BaseException] = []
        collector.on_start_failure = self._start_failure_handler()
        start, end = self._starter((*channels, initializer, tuple(initargs), *how)), partial(pass_on_end, self._tasks)
        with one_warning():
            self._workers = Workers(count, start, collector.lost, collector.gave_up, end, self._doing)
        self._patience = [_EXIT_TIMEOUT_S]
        self._state = RUN
        ending = (self._workers, self._feeding, collector, self._patience)
        self._terminate = mp_util.Finalize(self, Pool._end, ending, exitpriority=15)

    # ---- making

    def _choose_policies(
        self, processes: int | None, policy: Policy | list[Policy] | None, per_policy: int | None
    ) -> list[Policy | None]:
        if isinstance(policy, list):
            if policy:
                if processes is not None:
                    raise RuntimeError("give processes_per_policy with a list of policies, and not processes")
                return [p for p in policy for _ in range(self._checked(per_policy if per_policy is not None else 1))]
            warnings.warn(
                "the list of policies is empty (has this machine no GPU?): one worker per CPU is started instead",
                RuntimeWarning,
                stacklevel=3,
            )
            policy = None
        return [policy] * self._checked(processes if processes is not None else machine.cpu_count())

    @staticmethod
    def _checked(processes: int) -> int:
        processes = plain_number(processes)
        if not isinstance(processes, int):
            raise TypeError(f"the number of processes must be whole, not {processes!r}")
        if processes < 1:
            raise ValueError("Number of processes must be at least 1")
        return processes

    def _starter(self, arguments: tuple[Any, ...]) -> Callable[[int], WorkerProcess]:
        """Return a function that starts worker `index` as that member of the pool, in whichever thread it is called."""
        start_worker, policies = self._start_worker, self._policies
        members = placement.members(f"pool-{next(_numbers)}", policies)

        def start(index: int) -> WorkerProcess:  # has no reference to the pool
            with placement.as_member(members[index]):
                return start_worker(policies[index], (index, *arguments))

        return start

    @staticmethod
    def _start_worker(policy: Policy | None, arguments: tuple[Any, ...]) -> WorkerProcess:
        return Process(work, arguments, policy=policy, _kind="pool_worker")._begin()

    def _start_failure_handler(self) -> Callable[[BaseException], None]:
        """Return a function that stops the pool after an initializer raised, because it would raise in every new
        worker."""
        broken, collector, this = self._broken, self._collector, weakref.ref(self)

        def handle(error: BaseException) -> None:
            broken.append(error)
            pool = this()
            if pool is not None and hasattr(pool, "_workers"):
                pool._workers.stop_replacing()
            collector.fail_all(error)

        return handle

    # ---- submitting

    def _check_running(self) -> None:
        if self._state != RUN:
            raise ValueError("Pool not running")
        if self._broken:
            raise self._broken[0]

    def apply_async(
        self,
        func: Callable[..., V],
        args: Iterable[Any] = (),
        kwds: dict[str, Any] | None = None,
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
    ) -> ApplyResult[V]:
        """Call `func(*args, **kwds)` in a worker and return its pending result. The callbacks run in a thread of this
        process.

        Raises ValueError if the pool is closed, and what the initializer raised.
        """
        result = self._apply_async(func, tuple(args), kwds or {}, callback, error_callback)
        self._collector.attend()
        return result

    def _apply_async(
        self,
        func: Callable[..., V],
        args: tuple[Any, ...],
        kwds: dict[str, Any],
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
    ) -> ApplyResult[V]:
        self._check_running()
        result = self._apply_result(self, callback, error_callback)
        self._feeding.submit(((result._job, 0), func, args, kwds))
        return result

    def apply(self, func: Callable[..., V], args: Iterable[Any] = (), kwds: dict[str, Any] | None = None) -> V:
        """Call `func(*args, **kwds)` in a worker, wait for it and return its result. What it raises is raised here."""
        return self._apply_async(func, tuple(args), kwds or {}).get()

    def map_async(
        self,
        func: Callable[[K], V],
        iterable: Iterable[K],
        chunksize: int | None = None,
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
    ) -> MapResult[V]:
        """Call `func` for every element, `chunksize` elements to a task, and return the pending list of results.

        The default chunk size makes four tasks for each worker. Raises ValueError for a chunk size below 1.
        """
        result = self._map_async(func, iterable, mapstar, chunksize, callback, error_callback)
        self._collector.attend()
        return result

    def map(self, func: Callable[[K], V], iterable: Iterable[K], chunksize: int | None = None) -> list[V]:
        """Return the list of `func(element)` for every element."""
        return self._map_async(func, iterable, mapstar, chunksize).get()

    def starmap_async(
        self,
        func: Callable[..., V],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
    ) -> MapResult[V]:
        """Do the same as map_async() with `func(*element)`."""
        result = self._map_async(func, iterable, starmapstar, chunksize, callback, error_callback)
        self._collector.attend()
        return result

    def starmap(
        self, func: Callable[..., V], iterable: Iterable[Iterable[Any]], chunksize: int | None = None
    ) -> list[V]:
        """Return the list of `func(*element)` for every element."""
        return self._map_async(func, iterable, starmapstar, chunksize).get()

    def _map_async(
        self,
        func: Callable[..., V],
        iterable: Iterable[Any],
        mapper: Callable[..., Any],
        chunksize: int | None,
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
    ) -> MapResult[V]:
        self._check_running()
        items = iterable if isinstance(iterable, Sized) else list(iterable)
        length = len(items)
        if chunksize is None:
            chunksize = max(1, -(-length // (len(self._policies) * 4)))
        if chunksize < 1:
            raise ValueError(f"Chunksize must be 1+, not {chunksize:n}")
        result = self._map_result(self, chunksize, length, callback, error_callback)
        if length:
            self._feeding.feed(_tasks(result, mapper, _calls(func, _chunks(items, chunksize))))
        return result

    def imap(self, func: Callable[[K], V], iterable: Iterable[K], chunksize: int = 1) -> Iterator[V]:
        """Return an iterator over `func(element)`, in order.

        A thread reads the iterable, at most 1,024 tasks ahead of the consumer of the results. It reads another 1,024
        each time the consumer takes no result for half a second, and does not wait for the consumer once the pool is
        closed.
        """
        return self._imap_over(self._imap, func, iterable, chunksize)

    def imap_unordered(self, func: Callable[[K], V], iterable: Iterable[K], chunksize: int = 1) -> Iterator[V]:
        """Return an iterator over `func(element)` in the order in which results arrive; see imap()."""
        return self._imap_over(self._imap_unordered, func, iterable, chunksize)

    def _imap_over(
        self, kind: type[IMapIterator], func: Callable[..., Any], iterable: Iterable[Any], chunksize: int
    ) -> Iterator[Any]:
        self._check_running()
        if chunksize < 1:
            raise ValueError(f"Chunksize must be 1+, not {chunksize:n}")
        result, feeding = kind(self), self._feeding
        if chunksize == 1:
            tasks = _tasks(result, func, zip(iterable))
        else:
            tasks = _tasks(result, mapstar, _calls(func, _chunks(iterable, chunksize)))
        if type(iterable) in _AT_HAND:
            feeding.feed(tasks)
        else:

            def feed() -> None:
                for task in tasks:
                    result.await_consumer(task[0][1], lambda: feeding.closed or feeding.stopped)
                    feeding.put(task)
                    if feeding.stopped:
                        return

            feeding.start(feed)
        self._collector.attend()
        return result if chunksize == 1 else Elements(result)

    # ---- ending

    def close(self) -> None:
        """Accept no more tasks. The workers end when all tasks are done."""
        if self._state == RUN:
            self._state = CLOSE
            self._feeding.close()
            if self._collector.jobs:
                self._collector.attend()

    def terminate(self, patience: float = _DEFAULT_PATIENCE) -> None:
        """End the workers now: by SIGTERM, and after `patience` seconds by SIGKILL. Pending tasks get an error as their
        result."""
        self._state = TERMINATE
        self._patience[0] = checked_seconds("patience", patience)
        self._terminate()

    def kill(self) -> None:
        """End the workers immediately, by SIGKILL."""
        self._workers.stop_replacing()
        self._workers._kill_all()
        self.terminate()

    @staticmethod
    def _end(workers: Workers, feeding: Feeding, collector: Collector, patience: list[float]) -> None:
        feeding.stop()
        workers.terminate(patience[0])
        collector.fail_all_unless_exiting(RuntimeError("the pool was terminated before this task was done"))
        feeding.join()
        collector.close()

    def join(self, patience: float | None = None) -> None:
        """Wait for the workers to end. Raises ValueError if the pool is open, TimeoutError after `patience` seconds."""
        if self._state == RUN:
            raise ValueError("Pool is still running")
        if not self._workers.join(checked_seconds("patience", patience)):
            raise TimeoutError(f"workers of the pool still run after {patience} s")
        self._collector.drain()
        self._collector.fail_all(RuntimeError("all workers of the pool ended before this task was done"))
        self._feeding.join()
        self._collector.close()

    def __enter__(self) -> Self:
        self._check_running()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.terminate(_EXIT_TIMEOUT_S)

    def __reduce__(self) -> tuple[object, ...]:
        raise NotImplementedError("pool objects cannot be passed between processes or pickled")

    def __del__(self) -> None:
        if self._state == RUN:
            warnings.warn(f"unclosed running multiprocessing pool {self!r}", ResourceWarning, source=self, stacklevel=2)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__module__}.{type(self).__qualname__} state={self._state} pool_size={len(self._policies)}>"
        )

    # Programs that show a pool's progress read these attributes of the standard library's pool.

    @property
    def _pool(self) -> list[Any]:
        """The workers' processes."""
        return list(self._workers.processes)

    @property
    def _processes(self) -> int:
        """The number of workers."""
        return len(self._policies)

    @property
    def _cache(self) -> dict[int, Any]:
        """The pending results, by the number of their job."""
        self._collector.poll()
        return self._collector.jobs

    @property
    def _taskqueue(self) -> Feeding:
        """The tasks that no worker has taken yet."""
        return self._feeding

    def _repopulate_pool(self) -> None:
        for index in range(len(self._policies)):
            self._workers.replace(index)


def _chunks(items: Iterable[Any], size: int) -> Iterator[tuple[Any, ...]]:
    iterator = iter(items)
    return iter(lambda: tuple(itertools.islice(iterator, size)), ())


def _calls(function: Callable[..., Any], chunks: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    """Return the arguments of mapstar() and starmapstar() for each chunk."""
    return zip(zip(itertools.repeat(function), chunks))


def _tasks(
    result: MapResult | IMapIterator, function: Callable[..., Any], arguments: Iterator[tuple[Any, ...]]
) -> Iterator[Task]:
    submitted = 0
    try:
        for args in arguments:
            yield (result._job, submitted), function, args, {}
            submitted += 1
    except Exception as error:  # of the iterable
        result._fail(submitted, error)
    else:
        result._submitted(submitted)
