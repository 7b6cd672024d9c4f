"""Pending results of a pool's tasks. Each keeps its pool alive until it has arrived."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Generic

from dragon.infrastructure.generic import V
from dragon.native.collecting import Collector, Owner
from dragon.runtime.child import write_traceback

__all__ = ["ApplyResult", "Elements", "IMapIterator", "IMapUnorderedIterator", "MapResult"]

_AHEAD = 1024  # tasks of an imap() that are submitted before their results are fetched
_FETCH_TIMEOUT_S = 0.5  # seconds without a fetched result after which another _AHEAD tasks are submitted


class ApplyResult(Generic[V]):
    """The pending result of one call.

    Attributes:
        timeout_error: the class of the exception that get() raises after its timeout.
    """

    timeout_error: type[Exception] = TimeoutError

    def __init__(
        self,
        pool: Owner,
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
    ) -> None:
        self._pool: Owner | None = pool
        self._collector: Collector = pool._collector
        self._callback = callback
        self._error_callback = error_callback
        self._prompt = callback is not None or error_callback is not None
        self._done = False
        self._success = False
        self._value: Any = None
        self._job = self._collector.add(self)
        if self._prompt:
            self._collector.attend_promptly(1)

    def ready(self) -> bool:
        """Return whether the call has ended."""
        if not self._done:
            self._collector.poll()
        return self._done

    def successful(self) -> bool:
        """Return whether the call ended without an exception. Raises ValueError while it has not ended."""
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self._success

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the call to end, `timeout` seconds at most."""
        self._collector.wait(lambda: self._done, timeout)

    def get(self, timeout: float | None = None) -> V:
        """Wait for the call and return its result, or raise its exception. Raises TimeoutError after `timeout`
        seconds."""
        if not self._done:
            self.wait(timeout)
        if not self._done:
            raise self.timeout_error(f"no result after {timeout} s")
        if self._success:
            return self._value  # type: ignore[no-any-return]
        raise self._value

    def _arrived(self, index: int, success: bool, value: object) -> bool:
        """Store one task's result. Returns whether the job is complete."""
        self._finish(success, value)
        return True

    def _failed(self, error: BaseException) -> None:
        self._finish(False, error)

    def _finish(self, success: bool, value: Any) -> None:
        if self._done:
            return
        self._success, self._value = success, value
        call = self._callback if success else self._error_callback
        if call is not None:
            try:
                call(value)
            except Exception as error:  # must not be raised in the thread that waits for this or another result
                write_traceback(error)
        self._callback = self._error_callback = None
        self._collector.jobs.pop(self._job, None)  # as in the standard library, what has ended is not pending
        self._done = True
        if self._prompt:
            self._collector.attend_promptly(-1)
        self._pool = None


class MapResult(ApplyResult[list[V]], Generic[V]):
    """The pending results of a call for every element."""

    def __init__(
        self,
        pool: Owner,
        chunksize: int,
        length: int,
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
    ) -> None:
        super().__init__(pool, callback, error_callback)
        self._chunksize = chunksize
        self._values: list[Any] = [None] * length
        self._parts = self._left = -(-length // chunksize)
        self._counting = threading.Lock()  # a thread that could not submit a part stores the error itself
        self._error: BaseException | None = None
        if not self._left:  # the standard library calls no callback for an empty iterable
            self._callback = None
            self._collector.complete(self._job)
            self._finish(True, [])

    @property
    def _number_left(self) -> int:
        """The number of tasks without a result. Programs read it to show the progress of a map()."""
        self.ready()
        return self._left

    def _submitted(self, parts: int) -> None:
        """Note that all tasks were submitted. Fails the job if they are fewer than the iterable's len() promised."""
        if parts < self._parts:
            promised = f"the {self._parts} parts that its len() promised"
            self._fail(parts, ValueError(f"the iterable of map() gave {parts} of {promised}"))

    def _fail(self, index: int, error: BaseException) -> None:
        """Fail the job because no more tasks than `index` come."""
        self._failed(error)
        self._collector.complete(self._job)

    def _arrived(self, index: int, success: bool, value: Any) -> bool:
        with self._counting:
            if success:
                self._values[index * self._chunksize : (index + 1) * self._chunksize] = value
            elif self._error is None:
                self._error = value
            self._left -= 1
            if self._left:
                return False
        self._finish(self._error is None, self._values if self._error is None else self._error)
        return True


class IMapIterator(Iterator[V], Generic[V]):
    """An iterator over results, in the order of the arguments.

    Attributes:
        timeout_error: the class of the exception that next() raises after its timeout.
    """

    timeout_error: type[Exception] = TimeoutError

    def __init__(self, pool: Owner) -> None:
        self._pool: Owner | None = pool
        self._collector: Collector = pool._collector
        self._ready: deque[tuple[bool, Any]] = deque()
        self._early: dict[int, tuple[bool, Any]] = {}
        self._placed = 0
        self._placing = threading.Lock()  # one thread stores results, another the end of the arguments
        self._taken = 0
        self._ahead = _AHEAD
        self._resume_at = sys.maxsize  # the count of taken results at which await_consumer() is to be woken
        self._length: int | None = None
        self._job = self._collector.add(self)

    @property
    def _index(self) -> int:
        """The number of results that have arrived in order. Programs read it to show the progress of an imap()."""
        self._collector.poll()
        return self._placed

    def next(self, timeout: float | None = None) -> V:
        """Return the next result, or raise its exception. Raises StopIteration at the end, TimeoutError after `timeout`
        seconds."""
        while True:
            try:
                success, value = self._ready.popleft()
            except IndexError:
                if self._placed == self._length:
                    if self._ready:  # the last one arrived between the two looks
                        continue
                    raise StopIteration from None
                if not self._collector.wait(lambda: bool(self._ready) or self._placed == self._length, timeout):
                    raise self.timeout_error(f"no result after {timeout} s") from None
                continue
            self._taken += 1
            if self._taken >= self._resume_at:
                self._collector.notify_room()
            if success:
                return value  # type: ignore[no-any-return]
            raise value

    __next__ = next  # not a call: its frame would be in the traceback of each task that failed

    def is_due(self) -> bool:
        """Return whether next() would return or raise immediately."""
        if not self._ready:
            self._collector.poll()
        return bool(self._ready) or self._placed == self._length

    def await_consumer(self, part: int, lifted: Callable[[], bool]) -> None:
        """Wait while task number `part` is too far ahead of the consumer of the results, unless `lifted()` is true.

        A consumer that takes no result for a while gets more tasks submitted: the program may use the effects of the
        tasks only.
        """
        if part - self._taken < self._ahead or lifted():
            return
        with self._collector.room:
            while True:
                taken = self._taken
                self._resume_at = part - self._ahead // 2  # before the check: next() reads it afterwards
                if self._taken >= self._resume_at or lifted():
                    break
                if not self._collector.room.wait(_FETCH_TIMEOUT_S) and self._taken == taken:
                    self._ahead += _AHEAD
            self._resume_at = sys.maxsize

    def _arrived(self, index: int, success: bool, value: object) -> bool:
        with self._placing:
            self._place(index, success, value)
        self._collector.wake()
        return self._is_complete()

    def _is_complete(self) -> bool:
        if self._placed != self._length:
            return False
        self._collector.jobs.pop(self._job, None)  # before a pool that nobody else keeps ends, which fails pending jobs
        self._pool = None
        return True

    def _place(self, index: int, success: bool, value: object) -> None:
        self._early[index] = (success, value)
        while self._placed in self._early:
            self._ready.append(self._early.pop(self._placed))
            self._placed += 1

    def _submitted(self, length: int) -> None:
        """Note the number of tasks, unless the pool was terminated before it was known."""
        if self._length is None:
            self._length = length
        if self._is_complete():
            self._collector.complete(self._job)
        self._collector.wake()

    def _fail(self, index: int, error: BaseException) -> None:
        """End the results with this error, at position `index`: no more tasks come."""
        with self._placing:
            IMapIterator._place(self, index, False, error)
        self._submitted(index + 1)

    def _failed(self, error: BaseException) -> None:
        self._ready.append((False, error))
        self._placed += 1
        self._length = self._placed
        self._pool = None


class IMapUnorderedIterator(IMapIterator[V], Generic[V]):
    """An iterator over results in the order in which they arrive. An error of the arguments comes after all of them."""

    def _place(self, index: int, success: bool, value: object) -> None:
        self._ready.append((success, value))
        self._placed += 1
        if self._placed in self._early:  # an error of the arguments
            super()._place(self._placed, *self._early[self._placed])


class Elements(Iterator[V], Generic[V]):
    """An iterator over the results of single elements, from `parts`, the results of whole chunks."""

    def __init__(self, parts: IMapIterator[list[V]]) -> None:
        self.parts = parts
        self._elements = itertools.chain.from_iterable(parts)

    def __next__(self) -> V:
        return next(self._elements)
