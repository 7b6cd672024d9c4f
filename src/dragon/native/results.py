"""Results of a pool's tasks. Whoever waits for one collects what arrives, for others too: no thread is between."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Self

from dragon.native.outcomes import outcome_of
from dragon.native.workers import START_FAILED
from dragon.runtime.child import write_traceback
from dragon.runtime.handle import Channel

__all__ = ["ApplyResult", "Collector", "IMapIterator", "IMapUnorderedIterator", "MapResult", "Single", "chunks"]

_SLICE = 0.5


class Collector:
    """Takes results off the pool's channel and hands them to the jobs they belong to."""

    def __init__(self, results: Channel) -> None:
        self._results = results
        self._turn = threading.Condition()
        self._busy = False
        self._numbers = itertools.count()
        self.jobs: dict[int, Any] = {}
        self.tickets: dict[int, tuple[int, int]] = {}  # of each task that has no result yet: its job, and which part
        self.on_start_failure: Callable[[BaseException], None] = lambda error: None

    def add(self, job: Any) -> int:
        """Register a job; its number goes with its tasks."""
        number = next(self._numbers)
        self.jobs[number] = job
        return number

    def wait(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Collect, or let another thread collect, until `done()`; False after `timeout` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while not done():
            left = _SLICE if end is None else min(_SLICE, end - time.monotonic())
            if left <= 0:
                return done() or self._collect_ready(done)
            with self._turn:
                if self._busy:
                    if not done():
                        self._turn.wait(left)
                    continue
                self._busy = True
            try:
                self._collect(done, left)
            finally:
                with self._turn:
                    self._busy = False
                    self._turn.notify_all()
        return True

    def _collect(self, done: Callable[[], bool], timeout: float) -> None:
        end = time.monotonic() + timeout
        while not done():
            left = end - time.monotonic()
            if left <= 0:
                return
            try:
                message = self._results.get(True, left)
            except queue.Empty:
                return
            self.deliver(*message)

    def _collect_ready(self, done: Callable[[], bool]) -> bool:
        self.poll()
        return done()

    def poll(self) -> None:
        """Collect what is there already."""
        with self._turn:
            if self._busy:
                return
            self._busy = True
        try:
            while True:
                try:
                    message = self._results.get_nowait()
                except (queue.Empty, ValueError):
                    return
                self.deliver(*message)
        finally:
            with self._turn:
                self._busy = False
                self._turn.notify_all()

    def deliver(self, ticket: int, success: bool, value: Any, buffers: list[Any] | None = None) -> None:
        """The result of a task, or its error; the first that comes is the one."""
        success, value = outcome_of(success, value, buffers)
        if ticket == START_FAILED:
            self.on_start_failure(value)
            return
        number, part = self.tickets.pop(ticket, (-1, 0))
        job = self.jobs.get(number)
        if job is not None and job._arrived(part, success, value):
            self.jobs.pop(number, None)
            self.wake()

    def wake(self) -> None:
        """Let waiting threads look again."""
        with self._turn:
            self._turn.notify_all()

    def lost(self, ticket: int, error: BaseException) -> None:
        """A task died with its worker. What the worker had put before that is there first."""
        self._results.put((ticket, False, error))

    def gave_up(self, error: BaseException) -> None:
        """There is no worker, nor will there be."""
        self._results.put((START_FAILED, False, error))

    def fail_all(self, error: BaseException) -> None:
        """Give every job an error for a result."""
        for number, job in list(self.jobs.items()):
            job._failed(error)
            self.jobs.pop(number, None)
        self.tickets.clear()
        self.wake()


class ApplyResult:
    """The result of one call, to come."""

    timeout_error: type[Exception] = TimeoutError

    def __init__(
        self,
        collector: Collector,
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
    ) -> None:
        self._collector = collector
        self._callback = callback
        self._error_callback = error_callback
        self._done = False
        self._success = False
        self._value: Any = None
        self._number = collector.add(self)

    def ready(self) -> bool:
        """Whether the call has ended."""
        if not self._done:
            self._collector.poll()
        return self._done

    def successful(self) -> bool:
        """Whether it ended without an exception. Raises ValueError while it has not ended."""
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self._success

    def wait(self, timeout: float | None = None) -> None:
        """Wait for its end, `timeout` seconds at most."""
        self._collector.wait(lambda: self._done, timeout)

    def get(self, timeout: float | None = None) -> Any:
        """What it returned; what it raised is raised here. Raises TimeoutError after `timeout` seconds."""
        if not self._done:
            self.wait(timeout)
        if not self._done:
            raise self.timeout_error(f"no result after {timeout} s")
        if self._success:
            return self._value
        raise self._value

    def _arrived(self, index: int, success: bool, value: Any) -> bool:
        """Take one task's result; True if the job is complete."""
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
            except Exception as error:  # whoever waits for this or another result has no part in it
                write_traceback(error)
        self._callback = self._error_callback = None
        self._done = True


class MapResult(ApplyResult):
    """The results of a call for every element, to come."""

    def __init__(
        self,
        collector: Collector,
        chunksize: int,
        length: int,
        callback: Callable[[Any], Any] | None = None,
        error_callback: Callable[[BaseException], Any] | None = None,
    ) -> None:
        super().__init__(collector, callback, error_callback)
        self._chunksize = chunksize
        self._values: list[Any] = [None] * length
        self._left = -(-length // chunksize) if length else 0
        self._error: BaseException | None = None
        if not self._left:
            collector.jobs.pop(self._number, None)
            self._finish(True, [])

    def _arrived(self, index: int, success: bool, value: Any) -> bool:
        self._left -= 1
        if success:
            self._values[index * self._chunksize : (index + 1) * self._chunksize] = value
        elif self._error is None:
            self._error = value
        if self._left:
            return False
        if self._error is None:
            self._finish(True, self._values)
        else:
            self._finish(False, self._error)
        return True


class IMapIterator(Iterator[Any]):
    """Results in the order of the arguments, as they come. `feed` submits more as some arrive."""

    timeout_error: type[Exception] = TimeoutError

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._ready: deque[tuple[bool, Any]] = deque()
        self._early: dict[int, tuple[bool, Any]] = {}
        self._next_index = 0
        self._length: int | None = None
        self._number = collector.add(self)
        self.feed: Callable[[], None] = lambda: None

    def __iter__(self) -> IMapIterator:
        return self

    def next(self, timeout: float | None = None) -> Any:
        """The next result. Raises StopIteration at the end, TimeoutError after `timeout` seconds."""
        if not self._collector.wait(lambda: bool(self._ready) or self._next_index == self._length, timeout):
            raise self.timeout_error(f"no result after {timeout} s")
        if not self._ready:
            raise StopIteration
        success, value = self._ready.popleft()
        if success:
            return value
        raise value

    def __next__(self) -> Any:
        return self.next()

    def _arrived(self, index: int, success: bool, value: Any) -> bool:
        self._place(index, success, value)
        self.feed()
        return self._next_index == self._length

    def _place(self, index: int, success: bool, value: Any) -> None:
        self._early[index] = (success, value)
        while self._next_index in self._early:
            self._ready.append(self._early.pop(self._next_index))
            self._next_index += 1
        self._collector.wake()

    def _ends_at(self, length: int) -> None:
        """There are so many results in all."""
        self._length = length
        if self._next_index == length:
            self._collector.jobs.pop(self._number, None)
        self._collector.wake()

    def _failed(self, error: BaseException) -> None:
        self._ready.append((False, error))
        self._length = self._next_index


class IMapUnorderedIterator(IMapIterator):
    """Results as they come."""

    def _place(self, index: int, success: bool, value: Any) -> None:
        self._ready.append((success, value))
        self._next_index += 1
        self._collector.wake()


class Single:
    """An imap() of one element to a task, whose results are lists of one."""

    def __init__(self, parts: IMapIterator) -> None:
        self._parts = parts

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return self._parts.next()[0]

    def next(self, timeout: float | None = None) -> Any:
        """The next result. Raises TimeoutError after `timeout` seconds."""
        return self._parts.next(timeout)[0]


def chunks(items: Any, size: int) -> Iterator[tuple[Any, ...]]:
    """The elements of `items` in tuples of `size`; the last may be shorter."""
    iterator = iter(items)
    while chunk := tuple(itertools.islice(iterator, size)):
        yield chunk
