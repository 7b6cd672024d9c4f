"""An event loop of simulated time, whose callbacks belong to the processes of a simulated cluster.

Time passes by what callbacks take, and jumps to the next timer when none is ready. The callbacks of one thread run in
the order in which they became ready, as in any event loop. Which thread is next is drawn from the seed, because real
threads run at the same time. A callback belongs to the thread whose context it has, so what a callback calls later
belongs to the same thread. A process can be stopped (SIGSTOP) and killed; then its callbacks wait or are dropped.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from asyncio.events import Handle, TimerHandle
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, ContextVar, copy_context
from typing import Any


class DeadlockError(Exception):
    """Nothing is ready, and no timer is set."""


class Process:
    """A simulated process, which runs, is stopped or is dead."""

    def __init__(self, loop: Loop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.stops = 0  # by how many faults it is stopped
        self.dead = False
        self.work = loop.random.choice((1e-6, 1e-5))  # seconds of a callback, while all others wait
        self.signals: dict[int, Handle] = {}
        self.threads: list[Thread] = []
        self.main = Thread(self, "main")

    @property
    def runs(self) -> bool:
        return not (self.stops or self.dead)

    def stop(self) -> None:
        self.stops += 1
        self._leave()

    def _leave(self) -> None:
        self.loop.able = [thread for thread in self.loop.able if thread.process is not self]

    def go_on(self) -> None:
        """Continue after a stop. A loop looks at its timers and its descriptors in an order of its own."""
        self.stops -= 1
        if not self.runs:
            return
        for thread in self.threads:
            timers_first = self.loop.random.random() < 0.5
            order = sorted(thread.ready, key=lambda handle: isinstance(handle, TimerHandle) is not timers_first)
            thread.ready = deque(order)
            if order:
                self.loop.able.append(thread)

    def kill(self) -> None:
        self.dead = True
        self._leave()
        for thread in self.threads:
            thread.ready.clear()

    def signal(self, number: int) -> None:
        """Deliver a signal, which must have a handler."""
        handler = self.signals[number]
        self.main.soon(handler._callback, *handler._args)


class Thread:
    """What runs one callback after the other."""

    def __init__(self, process: Process, name: str) -> None:
        self.process = process
        self.name = f"{process.name} {name}" if name != "main" else process.name
        self.ready: deque[Handle] = deque()
        self.context = Context()
        self.context.run(_thread.set, self)
        process.threads.append(self)

    def soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Have this thread call a function."""
        self.process.loop.call_soon(callback, *arguments, context=self.context)

    def later(self, seconds: float, callback: Callable[..., object], *arguments: Any) -> TimerHandle:
        return self.process.loop.call_later(seconds, callback, *arguments, context=self.context)

    def task(self, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine in this thread."""
        return self.context.copy().run(self.process.loop.create_task, work)


_thread: ContextVar[Thread] = ContextVar("thread")


def this_process() -> Process:
    """Return the simulated process whose callback runs."""
    return _thread.get().process


class Source:
    """What a loop can watch. Subclasses say whether it is readable, and call changed() when that may have changed."""

    loop: Loop
    _watcher: tuple[Callable[..., object], tuple[Any, ...], Context] | None = None
    _is_due = False

    def is_readable(self) -> bool:
        raise NotImplementedError

    def watch(self, callback: Callable[..., object], *arguments: Any, context: Context | None = None) -> None:
        """Call a function whenever it is readable, in the thread of the caller."""
        self._watcher = callback, arguments, context or copy_context()
        self.changed()

    def unwatch(self) -> bool:
        watched, self._watcher = self._watcher is not None, None
        return watched

    def changed(self) -> None:
        if self._watcher is not None and not self._is_due and self.is_readable():
            self._is_due = True
            self.loop.call_soon(self._look, context=self._watcher[2])

    def _look(self) -> None:
        self._is_due = False
        if self._watcher is not None and self.is_readable():
            callback, arguments, _ = self._watcher
            callback(*arguments)
            self.changed()


class Loop(asyncio.BaseEventLoop):
    """The event loop of all simulated processes."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.now = 1000.0
        self.steps = 0
        self.able: list[Thread] = []  # those that have something to do, of processes that run
        self._timers: list[tuple[float, int, TimerHandle]] = []
        self._numbers = itertools.count()  # of timers: those of the same time are due in order
        self.over = False  # what is called later is dropped
        self.tasks: list[asyncio.Task[Any]] = []  # all, so that none of a killed process is destroyed meanwhile
        self.errors: list[str] = []  # what real loops report as unhandled
        self.outside = self.running = Process(self, "world")  # the world itself: faults, networks
        self.switched: Callable[[Process], None] = lambda process: None  # called when another process runs

    def time(self) -> float:
        """Return the simulated time, in seconds."""
        return self.now

    def _run_once(self) -> None:
        timers = self._timers
        while timers and (timers[0][0] <= self.now or timers[0][2]._cancelled):
            self._ready.append(heapq.heappop(timers)[2])
        while self._ready:
            handle = self._ready.popleft()
            thread = handle._context.get(_thread) or self.outside.main
            if not (handle._cancelled or thread.process.dead):
                if not thread.ready and thread.process.runs:
                    self.able.append(thread)
                thread.ready.append(handle)
        if self.able:
            which = int(self.random.random() * len(self.able))
            thread = self.able[which]
            handle = thread.ready.popleft()
            if not thread.ready:
                del self.able[which]
            self.steps += 1
            self.now += thread.process.work
            if thread.process is not self.running:
                self.running = thread.process
                self.switched(thread.process)
            if not handle._cancelled:
                handle._run()
        elif timers:
            self.now = timers[0][0]
        elif not self._stopping:
            raise DeadlockError("; ".join(waiting(asyncio.all_tasks(self))) or "no task waits")

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        timer = TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        """Do nothing: cancelled timers are dropped when they are due."""

    def call_soon_threadsafe(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        return self.call_soon(callback, *args, context=context)

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        handle = Handle(callback, args, self, context)
        if not self.over:
            self._ready.append(handle)
        return handle

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        thread = _thread.get(None)
        task = super().create_task(coro, **{"name": thread.name if thread is not None else None, **options})
        self.tasks.append(task)
        return task

    def run_in_executor(self, executor: object, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Call a function at once."""
        future = self.create_future()
        future.set_result(function(*args))
        return future

    def add_signal_handler(self, number: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        this_process().signals[number] = Handle(callback, args, self, None)

    def add_reader(self, source: Source, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        source.watch(callback, *args)

    def remove_reader(self, source: Source) -> bool:  # type: ignore[override]
        return source.unwatch()

    def remove_writer(self, source: Source) -> bool:  # type: ignore[override]
        """Do nothing: simulated sources accept whatever is written."""
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.errors.append(f"{context['message']}: {error!r}")


def waiting(tasks: Iterable[asyncio.Task[Any]]) -> list[str]:
    """Return, for each task, its thread and where it waits."""
    found = []
    for task in tasks:
        inner: Any = task.get_coro()
        while getattr(inner.cr_await, "cr_frame", None) is not None:
            inner = inner.cr_await
        frame = inner.cr_frame
        where = f"{inner.__qualname__}:{frame.f_lineno}" if frame is not None else inner.__qualname__
        found.append(f"{task.get_name()} waits in {where}")
    return sorted(found)
