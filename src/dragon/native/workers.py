"""The worker processes of a pool: their loop, and the thread that replaces those that end."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.util import _flush_std_streams  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, Protocol, cast

from dragon import cpython
from dragon.infrastructure.errors import DragonError, NodeLostError
from dragon.infrastructure.system import may_pass
from dragon.native.outcomes import Outcome, failed, put_result, returned
from dragon.runtime.handle import Channel, Words
from dragon.runtime.remote import node_of
from dragon.runtime.run import this_run
from dragon.runtime.serialization import import_hint
from dragon.runtime.tracing import begin_task, end_task
from dragon.signals import how_ended

if TYPE_CHECKING:
    from dragon.native.process import Process

START_FAILED = 0  # in place of a ticket: the initializer raised
FINISHED = 2**64 - 1  # in `doing`: this worker has seen the end mark of the tasks
_END = 2**64 - 2  # the ticket of the end mark
_STARTING = 2**64 - 3  # in `doing`: this worker has taken no task yet
MOST_TICKETS = _STARTING  # the numbers of tasks are below
_MOST_STILLBORN = 5  # workers in a row that end before their first task, after which no more are started
_RESTART_DELAY_S = 1.0  # seconds between two attempts to start a worker while no process can be made
_RECEIPT_PAUSE = 0.01  # seconds between two looks whether the pool has received what a result shares
_MOST_UNRECEIVED_S = 10.0  # seconds from the last result's receipt, after which a worker ends in any case
_MOST_WITHOUT_WORKERS_S = 30.0  # seconds of attempts to start workers once none is left


class WorkerLostError(DragonError):
    """A worker died during a task: it was killed, was out of memory, or ended itself."""


class WorkerProcess(Protocol):
    """The interface of a process that a pool uses."""

    @property
    def sentinel(self) -> int:
        """The descriptor that is ready to read when the process has ended."""

    @property
    def pid(self) -> int | None:
        """The process's id, None before it was started."""

    @property
    def exitcode(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""

    def is_alive(self) -> bool:
        """Return whether the process runs."""

    def terminate(self) -> None:
        """Send SIGTERM."""

    def kill(self) -> None:
        """Send SIGKILL."""

    def join(self, timeout: float | None = None) -> Any:
        """Wait for the end of the process, at most `timeout` seconds."""


class NativeWorker:
    """A native process with the interface that a pool uses."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def sentinel(self) -> int:
        """The descriptor that is ready to read when the process has ended."""
        assert self._process._started is not None
        return self._process._started.sentinel

    @property
    def pid(self) -> int | None:
        """The process's id on its node."""
        assert self._process._started is not None
        return self._process._started.pid

    @property
    def exitcode(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._process.returncode

    def is_alive(self) -> bool:
        """Return whether the process runs; False where its node is lost."""
        try:
            return self._process.is_alive
        except NodeLostError:
            return False

    def terminate(self) -> None:
        """Send SIGTERM, unless the process's node is lost."""
        with suppress(NodeLostError):
            self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL, unless the process's node is lost."""
        with suppress(NodeLostError):
            self._process.kill()

    def join(self, timeout: float | None = None) -> int | None:
        """Wait at most `timeout` seconds and return the exit code, None while the process runs."""
        return self._process.join(timeout)


@contextmanager
def quietly() -> Iterator[None]:
    """End the worker without a traceback when it is interrupted: the main program is interrupted too, and
    reports it."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)


def quiet(work: Callable[..., None]) -> Callable[..., None]:
    """Decorate the function of a worker so that it runs quietly(), from its call on."""
    run: Any = quietly()(work)
    run.is_quiet = True  # for native.bootstrap: it may be interrupted before it has entered quietly()
    return cast(Callable[..., None], run)


@quiet
def work(
    index: int,
    tasks: Channel,
    results: Channel,
    doing: Words,
    initializer: Callable[..., Any] | None,
    initargs: tuple[Any, ...],
    most: int | None,
    wrap_exceptions: bool,
) -> None:
    """Take tasks, run them and put their results, until the end mark comes (which stays for others) or `most` tasks are
    done.

    `doing[index]` is the ticket of the current task, so that the task of a killed worker is known.
    """
    if initializer is not None:
        try:
            initializer(*initargs)
        except Exception as error:
            results.put((START_FAILED, *failed(error, True)))
            doing[index] = FINISHED
            return
    away = node_of(results._name()) != this_run().node  # another node can receive copies only
    offered: set[int] = set()
    done = 0
    while most is None or done < most:
        try:
            task = tasks._get_task(doing, index)
        except Exception as error:
            ticket = doing[index]
            if not ticket:
                raise
            results.put((ticket, *failed(error, wrap_exceptions)))  # this process cannot deserialize the task
            doing[index] = 0
            continue
        if task is None:
            pass_on_end(tasks)
            _await_receipt(results, offered)
            doing[index] = FINISHED
            return
        ticket, function, args, kwargs = task
        begun = begin_task(function, args)
        try:
            outcome = returned(function(*args, **kwargs), offered, lasting=away)
        except Exception as error:
            outcome = failed(error, wrap_exceptions)
        end_task(begun, failed=not outcome[0])
        _flush()
        _put_result(results, ticket, outcome, wrap_exceptions)
        done += 1
        task = function = args = kwargs = outcome = None  # type: ignore[assignment]
    _await_receipt(results, offered)
    doing[index] = 0


def _await_receipt(results: Channel, offered: set[int]) -> None:
    """Wait until the pool has received these descriptors, which only this process can send; see
    cpython.offered_descriptors()."""
    deadline: float | None = None
    while offered & cpython.offered_descriptors():
        if results._size():
            deadline = None
        elif deadline is None:
            deadline = time.monotonic() + _MOST_UNRECEIVED_S
        elif time.monotonic() > deadline:
            return  # nobody receives them: the pool's process could not read the result
        time.sleep(_RECEIPT_PAUSE)


def _put_result(results: Channel, ticket: int, outcome: Outcome, wrap_exceptions: bool) -> None:
    try:
        put_result(results, (ticket, *outcome))
    except Exception as error:  # it cannot be pickled, or there is no memory for it
        put_result(results, (ticket, *failed(error, wrap_exceptions)))


def _flush() -> None:
    """Flush stdout and stderr before the result is put: the pool may end the worker once it has all results."""
    try:
        _flush_std_streams()
    except OSError:
        return  # the next print() raises it


def pass_on_end(tasks: Channel) -> None:
    """Put the end mark of the tasks; each worker that takes it puts it again, for the others."""
    tasks._put_task(None, _END)


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
        elif ticket == _END:
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
