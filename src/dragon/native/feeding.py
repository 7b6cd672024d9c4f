"""Puts a pool's tasks into the channel from which its workers take them.

The memory of the run that waiting tasks may take is bounded. Tasks for which there is no room stay in this process,
and threads put them as results arrive: one thread for all calls and lists, and one for each imap(), whose iterable may
be slow, wait for the consumer of the results, or never end. Each iterable is read by one thread only.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

from dragon import _core
from dragon.native.collecting import Collector
from dragon.native.workers import pass_on_end
from dragon.runtime.handle import Channel
from dragon.runtime.serialization import explained_call

Task = tuple[tuple[int, int], Any, tuple[Any, ...], dict[str, Any]]
"""((number of the job, part of the job), function, positional arguments, keyword arguments)."""

_MOST_TASKS = 16384  # pending tasks at most
_SHARE = 8  # waiting tasks take at most 1/8 of the node's shared memory
_MEMORY_CHECK_TASKS = 4  # tasks between two checks of the memory
_MOST_BYTES = 256 * 2**20
_ITERABLE_ENDS_WITHIN_S = 0.2  # seconds
_MEMORY_CHECK_S = 1.0  # seconds between two checks: a worker that takes a task makes room without a notification


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
        """Put a task when there is room. Does nothing once the pool is terminated."""
        while not self.stopped:
            self.await_room()
            if self._put_now(task):
                return
            # The run's memory is full; tasks that end free some.
            self._collector.await_room(len(self._tickets), _MEMORY_CHECK_S, lambda: self.stopped)

    def await_room(self) -> None:
        """Wait until there is room for a task, or the pool is terminated."""
        if self._has_room():
            return
        self._collector.attend_promptly(1)
        try:
            while not (self._has_room() or self.stopped):
                under_way = len(self._tickets)
                below = _MOST_TASKS // 2 if under_way >= _MOST_TASKS else under_way
                self._collector.await_room(below, _MEMORY_CHECK_S, lambda: self.stopped)
        finally:
            self._collector.attend_promptly(-1)

    def _has_room(self) -> bool:
        return len(self._tickets) < _MOST_TASKS and self._tasks._bytes() < self._most_bytes

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
        """Return the number of tasks that no worker has taken. Each submitted call that has not been put yet counts as
        one."""
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
        """Wait for the threads to end. In a terminated pool, a thread that is blocked in an iterable is left
        running."""
        deadline = time.monotonic() + _ITERABLE_ENDS_WITHIN_S
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()) if self.stopped else None)

    def _dismiss(self) -> None:
        for _ in range(self._idle):
            self._feeds.put(None)
        self._idle = 0
