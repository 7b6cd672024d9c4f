"""Takes results of a pool's tasks off its channel and gives them to the threads that wait for them.

A thread that waits for a result collects whatever arrives, also results of other threads, so that no thread lies
between it and the channel. While no thread waits, the pool's attendant collects: a thread that is started by the first
asynchronous call, sleeps while no result is pending, and collects where no other thread did for a moment. So callbacks
are called, and results that nobody has fetched yet are kept in this process's memory instead of the run's.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from dragon import _core, cpython
from dragon.native.workers import START_FAILED, outcome_of
from dragon.runtime.handle import Channel

_POLL_S = 0.5  # seconds between two checks of a thread that waits
_NO_TASK = 2**64 - 4  # the ticket of a message that only wakes a thread that waits for a message
_UNATTENDED_S = 0.1  # seconds without any thread that collects, after which the attendant does


class Job(Protocol):
    """The interface of a pending result that a collector uses. Both methods return whether the job is complete."""

    def _arrived(self, part: int, success: bool, value: object) -> bool: ...
    def _failed(self, error: BaseException) -> None: ...


class Owner(Protocol):
    """The pool that a result belongs to."""

    _collector: Collector


class Collector:
    """Takes results off the pool's channel and hands them to the jobs they belong to."""

    def __init__(self, results: Channel) -> None:
        self._results = results
        self._lock = threading.Lock()
        self._turn = threading.Condition(self._lock)  # for threads that wait while another one collects
        self._need = threading.Condition(self._lock)  # for the attendant
        self.room = threading.Condition()  # for threads that wait for fewer pending tasks, or for fetched results
        self._room_below = -1  # the number of pending tasks that a thread waits to fall below; -1 if none waits
        self._busy = False
        self._waiting = 0  # threads that wait while another one collects
        self._numbers = itertools.count()
        self._attendant: threading.Thread | None = None
        self._idle = False  # whether the attendant sleeps until there is a job
        self._promptly = 0  # jobs with callbacks, and threads that wait for room: results are collected at once
        self._delivered = 0
        self._closed = False
        self._at_exit: BaseException | None = None
        self.listeners: list[Callable[[], None]] = []  # called in any thread once a job may have more results
        self.jobs: dict[int, Job] = {}
        self.tickets: dict[int, tuple[int, int]] = {}  # job number and part of each pending task, by its ticket
        self.on_start_failure: Callable[[BaseException], None] = lambda error: None

    def add(self, job: Job) -> int:
        """Register a job. Returns its number, which its tasks carry."""
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
        """Return whether this thread is to collect; if not, another one has collected, and found results or stopped."""
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
        """Return a file descriptor that is readable while poll() has something to collect."""
        return self._results._fileno()

    def poll(self) -> None:
        """Collect the results that have arrived, without waiting."""
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
        """Collect all results that the workers put before they ended."""
        while self._results._size():
            if self._take_turn(lambda: not self._results._size(), _POLL_S):
                self._end_turn()
                self.poll()
        with self._lock:
            self._waiting += 1
            try:
                while self._busy:  # another thread delivers the results that it has taken
                    self._turn.wait(_POLL_S)
            finally:
                self._waiting -= 1

    def await_room(self, below: int, timeout: float | None, over: Callable[[], bool]) -> None:
        """Wait until fewer than `below` tasks are pending or `over()` is true, `timeout` seconds at most."""
        with self.room:
            while True:
                self._room_below = max(
                    self._room_below, below
                )  # set before the check: a thread that makes room reads it afterwards
                if len(self.tickets) < below or over() or not self.room.wait(timeout):
                    return

    def notify_room(self) -> None:
        """Wake the threads that wait for room, so that they check again."""
        with self.room:
            self.room.notify_all()

    # ---- the attendant

    def attend(self) -> None:
        """Ensure that results are collected though no thread waits for them."""
        if self._attendant is None:
            with self._lock:
                if self._attendant is None:
                    self._attendant = threading.Thread(target=self._attend, name="dragon-pool-results", daemon=True)
                    self._attendant.start()
        elif self._idle:
            with self._lock:
                self._need.notify()

    def attend_promptly(self, change: int) -> None:
        """Add (1) or remove (-1) a reason to collect results at once."""
        with self._lock:
            self._promptly += change
            self._need.notify()

    def _attend(self) -> None:
        while self._await_need():
            try:
                self._collect(lambda: self._waiting > 0 or not self.jobs or self._closed, _POLL_S)
            except _core.DestroyedError:
                return  # the run has ended
            finally:
                self._end_turn()

    def _await_need(self) -> bool:
        """Wait until results are pending and no thread collects, then take the turn; False once the pool is closed."""
        with self._lock:
            while not self._closed:
                if not self.jobs:
                    self._idle = True
                    if not self.jobs:  # a thread that adds a job reads `_idle` afterwards
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
        """Give a task's result or error to its job. Only the first one for each ticket counts."""
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
        """Remove a job that has all its results."""
        self.jobs.pop(number, None)
        self.wake()

    def wake(self) -> None:
        """Wake the threads that wait, so that they check again, and call the listeners."""
        for tell in tuple(self.listeners):
            tell()
        if self._waiting:
            with self._lock:
                self._turn.notify_all()

    def lost(self, ticket: int, error: BaseException) -> None:
        """Report that a task died with its worker. Results that the worker had put before arrive first."""
        self._results.put((ticket, False, error))

    def gave_up(self, error: BaseException) -> None:
        """Report that no worker is left and none can be started."""
        self._results.put((START_FAILED, False, error))

    def fail_all(self, error: BaseException) -> None:
        """Make `error` the result of every pending job."""
        self.tickets.clear()
        for number, job in list(self.jobs.items()):
            job._failed(error)
            self.jobs.pop(number, None)
        self.wake()
        self.notify_room()

    def fail_all_unless_exiting(self, error: BaseException) -> None:
        """Make `error` the result of every pending job; at the exit of the program, only of jobs that the main thread
        waits for later.

        At the exit, threads that wait already are daemon threads. As in the standard library they wait to the end: the
        traceback of an error could disturb the exit.
        """
        if cpython.is_exiting():
            self._at_exit = error
        else:
            self.fail_all(error)

    def close(self) -> None:
        """End the attendant: no more results come. Waits for a callback that it is calling."""
        self._closed = True
        with self._lock:
            self._turn.notify_all()
            self._need.notify()
            busy = self._busy
        self.notify_room()
        if self._attendant is None or self._attendant is threading.current_thread():
            return
        if busy:
            with suppress(queue.Full, _core.DestroyedError):  # a full channel has a message that wakes the thread
                self._results.put_nowait((_NO_TASK, True, None))
        self._attendant.join()
