"""Starts and replaces a pool's workers, and puts tasks into the channel from which they take them.

The memory of the run that waiting tasks may take is bounded. Tasks for which there is no room stay in this process,
and threads put them as results arrive: one thread for all calls and lists, and one for each imap(), whose iterable may
be slow, wait for the consumer of the results, or never end. Each iterable is read by one thread only.
"""

from __future__ import annotations

import itertools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from dragon import _core
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.system import may_pass
from dragon.native.collecting import Collector
from dragon.native.workers import END, FINISHED, MOST_TICKETS, WorkerLostError, pass_on_end
from dragon.runtime.handle import Channel, Words
from dragon.runtime.serialization import explained_call, import_hint
from dragon.signals import how_ended

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from dragon.runtime.spawning import Started

    WorkerProcess = Started | BaseProcess

Task = tuple[tuple[int, int], Any, tuple[Any, ...], dict[str, Any]]
"""((number of the job, part of the job), function, positional arguments, keyword arguments)."""

_MOST_TASKS = 16384  # pending tasks at most
_SHARE = 8  # waiting tasks take at most 1/8 of the node's shared memory
_MEMORY_CHECK_TASKS = 4  # tasks between two checks of the memory
_MOST_BYTES = 256 * 2**20
_ITERABLE_ENDS_WITHIN_S = 0.2  # seconds
_MEMORY_CHECK_S = 1.0  # seconds between two checks: a worker that takes a task makes room without a notification
_STARTING = MOST_TICKETS  # in `doing`: this worker has taken no task yet
_MOST_STILLBORN = 5  # workers in a row that end before their first task, after which no more are started
_RESTART_DELAY_S = 1.0  # seconds between two attempts to start a worker while no process can be made
_MOST_WITHOUT_WORKERS_S = 30.0  # seconds of attempts to start workers once none is left


class Workers:
    """The workers of a pool. `doing` has the ticket of each worker's current task.

    `start(index)` starts a worker, and is called again later if that failed for lack of resources. `lost(ticket,
    error)` is called for a task that died with its worker, `gave_up(error)` if no worker is left and no other could be
    started, `pass_on()` to put the end mark again that a worker has taken and may not have put.
    """

    def __init__(
        self,
        count: int,
        start: Callable[[int], WorkerProcess],
        lost: Callable[[int, BaseException], None],
        gave_up: Callable[[BaseException], None],
        pass_on: Callable[[], None],
        doing: Words,
    ) -> None:
        self._start = start
        self._lost = lost
        self._gave_up = gave_up
        self._pass_on = pass_on
        self._doing = doing
        self._lock = threading.Lock()
        self._wake = os.eventfd(0)
        self._replacing = True
        self._terminated = False
        self._not_started: BaseException | None = None
        self._stillborn = 0
        self._over: set[int] = set()  # indices of workers that ended and were not replaced
        self._missing: set[int] = set()  # those of `_over` whose start is retried
        self.ended = threading.Event()
        self.processes: list[WorkerProcess] = []
        try:
            for index in range(count):
                self._doing[index] = _STARTING
                self.processes.append(start(index))
        except BaseException:
            self.stop_replacing()
            self._kill_all()
            raise
        self._thread = threading.Thread(target=self._watch, name="dragon-pool-watch", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        """Replace workers that end, until they have seen the end mark or no more are wanted."""
        deadline = 0.0
        while True:
            waiting = {p.sentinel: i for i, p in enumerate(self.processes) if i not in self._over}
            if waiting:
                deadline = time.monotonic() + _MOST_WITHOUT_WORKERS_S
            elif not self._missing or time.monotonic() > deadline:
                break
            events = select.poll()
            for fd in [*waiting, self._wake]:
                events.register(fd, select.POLLIN)
            for fd, _ in events.poll(_RESTART_DELAY_S * 1000 if self._missing else None):
                if fd == self._wake:
                    os.eventfd_read(fd)
                else:
                    self._ended(waiting[fd])
            for index in sorted(self._missing):
                self.replace(index)
        if self._not_started is not None and not self._terminated:
            self._gave_up(self._not_started)
        with self._lock:
            os.close(self._wake)
            self._wake = -1
        self.ended.set()

    def _ended(self, index: int) -> None:
        process = self.processes[index]
        self._over.add(index)
        how = _wait_for(process)
        ticket = self._doing[index]
        if ticket == FINISHED:
            return
        self._doing[index] = 0
        if self._terminated:
            return  # terminate()'s caller makes its task fail
        self._stillborn = self._stillborn + 1 if ticket == _STARTING else 0
        if self._stillborn == _MOST_STILLBORN:
            how += import_hint() if how == _how(1) else ""
            self._give_up(WorkerLostError(f"{_MOST_STILLBORN} workers in a row ended while they started, {how}"))
        elif ticket == END:
            self._pass_on()  # the worker may have died before it did
        elif ticket not in (0, _STARTING):
            self._lost(ticket, WorkerLostError(f"the worker (pid {process.pid}) died in this task, {how}"))
        self.replace(index)

    def replace(self, index: int) -> None:
        """Start a new worker in place of one that ended."""
        with self._lock:
            self._missing.discard(index)
            if self._replacing and not self.processes[index].is_alive():
                self._doing[index] = _STARTING
                try:
                    self.processes[index] = self._start(index)
                    self._over.discard(index)
                    self._not_started = None
                except Exception as error:
                    self._not_started = error  # the other workers continue: they may be on other nodes
                    if may_pass(getattr(error, "errno", None) or 0):
                        self._missing.add(index)

    def current(self, index: int) -> WorkerProcess:
        """Return the worker that has that index. A new one may run a task before its start has been reported here."""
        with self._lock:
            return self.processes[index]

    def _give_up(self, error: BaseException) -> None:
        """Start no more workers, because they would end as the last ones did."""
        with self._lock:
            self._replacing = False
            self._not_started = error

    def stop_replacing(self) -> None:
        """Stop replacing workers that end."""
        with self._lock:
            self._replacing = False
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def terminate(self, patience: float) -> None:
        """End all workers by SIGTERM, and after `patience` seconds by SIGKILL."""
        self._terminated = True
        self.stop_replacing()
        for process in self.processes:
            if process.is_alive():
                process.terminate()
        deadline = time.monotonic() + patience
        for process in self.processes:
            _wait_for(process, max(0.0, deadline - time.monotonic()))
        self._kill_all()
        if threading.current_thread() is not self._thread:
            # The thread uses the processes, and the run may end soon.
            self._thread.join(patience)

    def _kill_all(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for all workers to end. Returns False after `timeout` seconds."""
        return self.ended.wait(timeout)


def _wait_for(process: WorkerProcess, timeout: float | None = None) -> str:
    """Wait at most `timeout` seconds and return words that say how the process ended, for a message."""
    try:
        process.join(timeout)
    except NodeLostError as error:
        return f"as {error}"
    return _how(process.exitcode or 0)


def _how(code: int) -> str:
    return f"with {how_ended(code)}"


class Feeding:
    """Puts tasks into the pool's channel, and the end mark after the last task once the pool is closed."""

    def __init__(self, tasks: Channel, collector: Collector) -> None:
        self._tasks = tasks
        self._put_task = tasks._put_task
        self._collector = collector
        self._tickets = collector.tickets
        self._most_bytes = min(_MOST_BYTES, _core.usage()["limit"] // _SHARE)
        self._next_ticket = itertools.count(1)
        self._lock = threading.Lock()
        self._open = 0  # threads that feed
        self._waiting: deque[Iterator[Task]] = deque()
        self._goes_on = False  # whether a thread puts the waiting tasks
        self._threads: list[threading.Thread] = []
        self._idle = 0  # threads that wait for something to feed
        self._feeds: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.closed = False
        self.stopped = False

    def submit(self, task: Task) -> None:
        """Put one task; a thread puts it later if there is no room now."""
        if self._waiting or not self._put_now(task):
            self._put_later(iter((task,)))

    def feed(self, tasks: Iterator[Task]) -> None:
        """Put tasks whose iterator does not block: now those for which there is room, the others later in a thread."""
        if not self._waiting:
            for task in tasks:
                if not self._put_now(task):
                    tasks = itertools.chain((task,), tasks)
                    break
            else:
                return
        self._put_later(tasks)

    def _put_later(self, tasks: Iterator[Task]) -> None:
        with self._lock:
            self._waiting.append(tasks)
            if self._goes_on:
                return
            self._goes_on = True
        self.start(self._feed_waiting)

    def start(self, feed: Callable[[], None]) -> None:
        """Call feed() in a thread. The end mark is put only after it has returned."""
        with self._lock:
            self._open += 1
            idle = self._idle > 0
            self._idle -= idle
        self._collector.attend()
        if idle:
            self._feeds.put(feed)
        else:
            thread = threading.Thread(target=self._run, args=(feed,), name="dragon-pool-tasks", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _run(self, feed: Callable[[], None] | None) -> None:
        """Call feed(), then wait for another one: starting a thread takes longer than a small imap()."""
        while feed is not None:
            try:
                feed()
            except _core.DestroyedError:
                return  # the run has ended
            feed = None
            with self._lock:
                self._open -= 1
                ended = self.closed or self.stopped
                last = self.closed and not self._open
                self._idle += not ended
            if last and not self.stopped:
                pass_on_end(self._tasks)
            if ended:
                return
            feed = self._feeds.get()

    def _feed_waiting(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or self.stopped:
                    self._goes_on = False
                    return
                source = self._waiting[0]
            for task in source:
                self.put(task)
            self._waiting.popleft()

    def put(self, task: Task) -> None:
        """Put a task as soon as there is room. Does nothing once the pool is terminated."""
        tickets, waits = self._tickets, False
        try:
            while not self.stopped:
                under_way = len(tickets)
                is_full = under_way >= _MOST_TASKS
                if not is_full and self._tasks._bytes() < self._most_bytes and self._put_now(task):
                    return
                if not waits:
                    self._collector.attend_promptly(1)
                    waits = True
                # Tasks that end free memory of the run, if that is what is full.
                below = _MOST_TASKS // 2 if is_full else under_way
                self._collector.await_room(below, _MEMORY_CHECK_S, lambda: self.stopped)
        finally:
            if waits:
                self._collector.attend_promptly(-1)

    def _put_now(self, task: Task) -> bool:
        """Put a task. Returns False if there is no room now."""
        tickets = self._tickets
        under_way = len(tickets)
        # The memory is checked only with some tasks, because the check costs time and a few tasks take little.
        if under_way >= _MOST_TASKS or (
            under_way % _MEMORY_CHECK_TASKS == 1 and self._tasks._bytes() >= self._most_bytes
        ):
            return False
        part, function, args, kwargs = task
        ticket = next(self._next_ticket)
        tickets[ticket] = part
        try:
            self._put_task((ticket, function, args, kwargs), ticket)
        except _core.DestroyedError:
            raise
        except Exception as error:
            if isinstance(error, MemoryError) and len(tickets) > 1:
                del tickets[ticket]
                return False
            self._collector.deliver(ticket, False, explained_call(function, args, kwargs, error))
        return True

    def qsize(self) -> int:
        """Return the number of tasks that no worker has taken; a call that has not been put yet counts as one."""
        return self._tasks._size() + len(self._waiting)

    def empty(self) -> bool:
        """Return whether no task waits for a worker."""
        return self.qsize() == 0

    def close(self) -> None:
        """Accept no more tasks. Those that were submitted are still put."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            ended = not self._open
            self._dismiss()
        if ended:
            pass_on_end(self._tasks)
        self._collector.notify_room()

    def stop(self) -> None:
        """Put no more tasks, and no end mark."""
        with self._lock:
            self.stopped = True
            self._dismiss()
        self._collector.notify_room()

    def join(self) -> None:
        """Wait for the threads to end, but in a terminated pool not for one that is blocked in an iterable."""
        deadline = time.monotonic() + _ITERABLE_ENDS_WITHIN_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()) if self.stopped else None)

    def _dismiss(self) -> None:
        for _ in range(self._idle):
            self._feeds.put(None)
        self._idle = 0
