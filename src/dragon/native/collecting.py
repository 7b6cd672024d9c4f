"""Results of a pool's tasks, taken off its channel and handed to whoever waits for them.

Whoever waits for a result collects what arrives, for others too, so that no thread is between. While nobody waits, the
pool's attendant collects: a thread that is started by the first call whose result is awaited later, sleeps while
there is nothing to collect, and steps in where nobody has collected for a moment. So callbacks are called, and results
that nobody has fetched yet lie in this process's memory and not in that of the run.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from dragon import _core
from dragon.infrastructure import cpython
from dragon.native.outcomes import outcome_of
from dragon.native.workers import START_FAILED
from dragon.runtime.handle import Channel

__all__ = ["Collector", "Job", "Owner"]

_POLL_S = 0.5  # seconds after which who waits looks again
_NO_TASK = 2**64 - 4  # the ticket of a message that only wakes who waits for one
_UNATTENDED_S = 0.1  # seconds without anybody who collects, before the attendant does


class Job(Protocol):
    """What a collector needs of a result that is to come. Both methods return whether the job is complete."""

    def _arrived(self, part: int, success: bool, value: Any) -> bool: ...
    def _failed(self, error: BaseException) -> None: ...


class Owner(Protocol):
    """The pool whose results these are."""

    _collector: Collector


class Collector:
    """Takes results off the pool's channel and hands them to the jobs they belong to."""

    def __init__(self, results: Channel) -> None:
        self._results = results
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)  # who collects
        self._need = threading.Condition(self._lock)  # for the attendant
        self.room = threading.Condition()  # for who waits until fewer tasks are under way, or results are fetched
        self._room_below = -1  # that many tasks, where somebody waits for it
        self._busy = False
        self._waiting = 0  # threads that wait while another one collects
        self._numbers = itertools.count()
        self._attendant: threading.Thread | None = None
        self._idle = False  # the attendant sleeps until there is a job
        self._promptly = 0  # jobs with callbacks, and threads that wait for room
        self._delivered = 0
        self._closed = False
        self._at_exit: BaseException | None = None
        self.listeners: list[Callable[[], None]] = []  # called in any thread once a job may have more results
        self.jobs: dict[int, Job] = {}
        self.tickets: dict[int, tuple[int, int]] = {}  # of each task that has no result yet: its job, and which part
        self.on_start_failure: Callable[[BaseException], None] = lambda error: None

    def add(self, job: Job) -> int:
        """Register a job; its number goes with its tasks."""
        number = next(self._numbers)
        self.jobs[number] = job
        return number

    # ---- waiting

    def wait(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Collect, or let another thread collect, until `done()`; False after `timeout` seconds."""
        if self._at_exit is not None and threading.current_thread() is threading.main_thread():
            self.fail_all(self._at_exit)
        end = None if timeout is None else time.monotonic() + timeout
        while not done():
            left = _POLL_S if end is None else min(_POLL_S, end - time.monotonic())
            if left <= 0:
                self.poll()
                return done()
            if self._take_turn(done, left):
                try:
                    self._collect(done, left)
                finally:
                    self._end_turn()
        return True

    def _take_turn(self, done: Callable[[], bool], timeout: float) -> bool:
        """Whether this thread is to collect; otherwise another one did, and has found something or stopped."""
        with self._lock:
            if not self._busy:
                self._busy = True
                return True
            self._waiting += 1
            try:
                if not done():
                    self._turn.wait(timeout)
            finally:
                self._waiting -= 1
            return False

    def _end_turn(self) -> None:
        with self._lock:
            self._busy = False
            if self._waiting:
                self._turn.notify_all()
            if self._promptly:
                self._need.notify()

    def _collect(self, done: Callable[[], bool], timeout: float) -> None:
        end = time.monotonic() + timeout
        while not done() and timeout > 0:
            try:
                message = self._results.get(True, timeout)
            except queue.Empty:
                return
            self.deliver(*message)
            if done():
                return
            timeout = end - time.monotonic()

    def fileno(self) -> int:
        """A descriptor that is readable while there is something for poll() to collect."""
        return self._results._fileno()

    def poll(self) -> None:
        """Collect what is there already."""
        with self._lock:
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
            self._end_turn()

    def drain(self) -> None:
        """Collect what the workers, which have ended, have put."""
        while self._results._size():
            if self._take_turn(lambda: not self._results._size(), _POLL_S):
                self._end_turn()
                self.poll()
        with self._lock:
            self._waiting += 1
            try:
                while self._busy:  # another thread hands on what it has taken
                    self._turn.wait(_POLL_S)
            finally:
                self._waiting -= 1

    def await_room(self, below: int, timeout: float | None, over: Callable[[], bool]) -> None:
        """Wait until fewer than `below` tasks have no result yet, or `over()`, but no longer than `timeout` seconds."""
        with self.room:
            while True:
                self._room_below = max(
                    self._room_below, below
                )  # before the look: who makes room looks at it afterwards
                if len(self.tickets) < below or over() or not self.room.wait(timeout):
                    return

    def notify_room(self) -> None:
        """Let who waits for room look again."""
        with self.room:
            self.room.notify_all()

    # ---- the attendant

    def attend(self) -> None:
        """See to it that results are collected though nobody waits."""
        if self._attendant is None:
            with self._lock:
                if self._attendant is None:
                    self._attendant = threading.Thread(target=self._attend, name="dragon-pool-results", daemon=True)
                    self._attendant.start()
        elif self._idle:
            with self._lock:
                self._need.notify()

    def attend_promptly(self, change: int) -> None:
        """One more (1) or one less (-1) for whom results are collected at once."""
        with self._lock:
            self._promptly += change
            self._need.notify()

    def _attend(self) -> None:
        while self._await_need():
            try:
                self._collect(self._is_relieved, _POLL_S)
            except _core.DestroyedError:
                return  # the run has ended
            finally:
                self._end_turn()

    def _is_relieved(self) -> bool:
        return self._waiting > 0 or not self.jobs or self._closed

    def _await_need(self) -> bool:
        """Wait until nobody collects though there is something to come, and begin to; False once the pool is closed."""
        with self._lock:
            while not self._closed:
                if not self.jobs:
                    self._idle = True
                    if not self.jobs:  # who adds one looks at `_idle` afterwards
                        self._need.wait()
                    self._idle = False
                elif self._busy or self._waiting:
                    self._need.wait(_UNATTENDED_S)
                elif self._promptly or self._nobody_collects():
                    self._busy = True
                    return True
            return False

    def _nobody_collects(self) -> bool:
        before = self._delivered
        self._need.wait(_UNATTENDED_S)
        return not (self._busy or self._waiting) and self._delivered == before

    # ---- results

    def deliver(self, ticket: int, success: bool, value: Any, buffers: list[Any] | None = None) -> None:
        """The result of a task, or its error; the first that comes is the one."""
        if buffers is not None:
            success, value = outcome_of(success, value, buffers)
        if ticket == START_FAILED:
            self.on_start_failure(value)
            return
        number, part = self.tickets.pop(ticket, (-1, 0))
        self._delivered += 1
        if self._room_below >= 0 and len(self.tickets) < self._room_below:
            self._room_below = -1
            self.notify_room()
        job = self.jobs.get(number)
        if job is not None and job._arrived(part, success, value):
            self.complete(number)

    def complete(self, number: int) -> None:
        """Nothing more comes for a job."""
        self.jobs.pop(number, None)
        self.wake()

    def wake(self) -> None:
        """Let those who wait look again."""
        for tell in tuple(self.listeners):
            tell()
        if self._waiting:
            with self._lock:
                self._turn.notify_all()

    def lost(self, ticket: int, error: BaseException) -> None:
        """A task died with its worker. What the worker had put before that is there first."""
        self._results.put((ticket, False, error))

    def gave_up(self, error: BaseException) -> None:
        """There is no worker, nor will there be."""
        self._results.put((START_FAILED, False, error))

    def fail_all(self, error: BaseException) -> None:
        """Give every job an error for a result."""
        self.tickets.clear()
        for number, job in list(self.jobs.items()):
            job._failed(error)
            self.jobs.pop(number, None)
        self.wake()
        self.notify_room()

    def fail_all_unless_exiting(self, error: BaseException) -> None:
        """The same; but where the program ends, only for those who wait from then on. Who waits already is a daemon
        thread, which waits to the end, as in the standard library: what it said might be in the way of that."""
        if cpython.is_exiting():
            self._at_exit = error
        else:
            self.fail_all(error)

    def close(self) -> None:
        """No more results come: the attendant ends, after a callback that it is in."""
        self._closed = True
        with self._lock:
            self._turn.notify_all()
            self._need.notify()
            busy = self._busy
        self.notify_room()
        if self._attendant is None or self._attendant is threading.current_thread():
            return
        if busy:
            with suppress(queue.Full, _core.DestroyedError):  # where it is full there is something to get
                self._results.put_nowait((_NO_TASK, True, None))
        self._attendant.join()
