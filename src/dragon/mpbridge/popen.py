"""Starts processes of the start method "dragon"."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable
from multiprocessing import connection, popen_fork, spawn
from multiprocessing.context import set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

from dragon import _core, cpython
from dragon.infrastructure.errors import NodeLostError, RunEndedError
from dragon.infrastructure.policy import Policy, PolicyError
from dragon.infrastructure.start_request import Output, StartRequest
from dragon.native.workers import work
from dragon.runtime import placement, serialization
from dragon.runtime.child import HEADER, InheritedDescriptor
from dragon.runtime.log import runtime_log
from dragon.runtime.picklers import UNSENDABLE
from dragon.runtime.placement import Placed
from dragon.runtime.run import frame, this_run
from dragon.runtime.spawning import (
    current_folder,
    environment_changes,
    new_request,
    prepare_call,
    standard_streams,
    start,
)

_TRACKER = cpython.resource_tracker()


class _Process(Protocol):
    name: str
    _target: Callable[..., object] | None

    def run(self) -> object: ...


def tracker_descriptor() -> int:
    """Return the descriptor of this process's tracker. Raises RunEndedError if no agent can start one."""
    with _TRACKER._lock:
        if _TRACKER._fd is not None:
            events = select.poll()
            events.register(_TRACKER._fd, 0)
            if events.poll(0):  # the pipe is broken
                _leave()
        if _TRACKER._fd is None:
            _TRACKER._fd = _new_tracker()
        return int(_TRACKER._fd)


def _new_tracker() -> int:
    reading, writing = os.pipe()
    try:
        with standard_streams() as (_, _, errors):
            this_run().tell(frame("KeepTracker", os.getpid()), [reading, errors])
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    run = this_run()
    if run.owner_pid == os.getpid():
        run.before_end.append(_give_back)
        _core.set_tracker(writing)
    if not hasattr(
        _TRACKER, "_stop_locked"
    ):  # later releases of Python 3.12, and 3.13, support other processes' trackers
        _TRACKER._stop = _stop
    return writing


def _give_back() -> None:
    """Release an unused tracker: the run ends before this process, which then starts its own if needed."""
    with _TRACKER._lock:
        if _TRACKER._fd is None:
            return
        from dragon.runtime.agent_client import ask
        from dragon.runtime.protocol.run import GiveTrackerBack

        try:
            unused = ask(GiveTrackerBack(os.fstat(_TRACKER._fd).st_ino))
        except RunEndedError:
            return
        if unused:
            _leave()


def _leave() -> None:
    _core.set_tracker(-1)
    os.close(_TRACKER._fd)
    _TRACKER._fd = _TRACKER._pid = None


def _stop() -> None:
    """Stop using the tracker, as multiprocessing's own tests do; older versions would wait for the agent's child."""
    if _TRACKER._fd is not None and _TRACKER._pid is None:
        _leave()
    else:
        type(_TRACKER)._stop(_TRACKER)


ForkingPickler.reducer_override = serialization.reduce_unfound  # type: ignore[assignment]

_SPAWNS_OWN = {
    *("log_to_stderr", "log_level", "name", "authkey", "sys_path", "sys_argv", "orig_dir", "dir"),
    *("start_method", "init_main_from_name", "init_main_from_path"),
}


_told = False  # whether the log says that processes that inherit open files stay on this node


class Popen(popen_fork.Popen):
    """A started process, for multiprocessing's Process.

    Attributes:
        returncode: the exit code once poll() or wait() has found it, negative for a signal; None before.
        pid: the process id on the process's node.
        puid: the number of the process, unique in the run.
        sentinel: a file descriptor that becomes readable when the process ends.
        finalizer: None.
    """

    method = "dragon"  # the name of the start method
    DupFd = InheritedDescriptor  # the class of inherited descriptors

    def __init__(self, process_obj: object) -> None:
        self._descriptors: list[int] = []
        try:
            super().__init__(process_obj)  # type: ignore[arg-type]
        except UNSENDABLE as error:
            raise error.with_traceback(None) from None  # the object is the caller's; these frames would only distract

    def duplicate_for_child(self, fd: int) -> int:
        """Make the new process inherit a descriptor. Returns the argument for DupFd()."""
        self._descriptors.append(fd)
        return len(self._descriptors) - 1

    def _launch(self, process_obj: _Process) -> None:
        placed = placement.place(None)
        local = placed.is_local
        request = self._request(process_obj, placed, local)
        if self._descriptors and not local:
            placed = self._place_here(process_obj, placed)
            request = self._request(process_obj, placed, True)
        self._started = started = start(request, self._descriptors)
        self.pid, self.puid, self.sentinel = started.pid, started.puid, started.sentinel
        placement.note(placed, request.name, process_obj._target or process_obj.run, request.puid)

    @staticmethod
    def _place_here(process_obj: _Process, placed: Placed) -> Placed:
        """Return a place on this node: a process that inherits descriptors cannot run on another one."""
        if placed.named:
            raise PolicyError(f"{process_obj.name} inherits open files, so it cannot run on {placed.node.host_name}")
        here = placement.place(Policy(placement=Policy.Placement.LOCAL))
        if here.node.index != placed.node.index and not _serves_manager(process_obj):
            global _told
            if not _told:
                _told = True
                runtime_log("processes").warning(
                    "%s inherits open files, which other nodes cannot use: such processes run on this node",
                    process_obj.name,
                )
        return here

    def _request(self, process_obj: _Process, placed: Placed, local: bool) -> StartRequest:
        self._descriptors = []
        folder = current_folder(local)
        name = str(process_obj.name)  # multiprocessing accepts any object as a name
        request = new_request(name, cpus=placed.mask, folder=folder, node=placed.node.index)
        request.environment = environment_changes(this_run(), placed.environment)
        # As in the standard library, except for workers of a pool: the processes that they started end with them.
        request.leave_running = process_obj._target is not work
        request.streams = [Output("null"), Output(), Output()]
        prepare_call(request, "dragon.runtime.child:run_multiprocessing", lambda: self._payload(process_obj, local))
        return request

    def _payload(self, process_obj: _Process, local: bool) -> bytes:
        tracker = tracker_descriptor()
        if local:
            self.duplicate_for_child(tracker)
        header = HEADER.pack(os.getpid(), local, tracker, os.fstat(tracker).st_ino)
        set_spawning_popen(self)  # type: ignore[arg-type]
        try:
            prepared = _preparation(process_obj)
            return header + serialization.dumps((prepared, process_obj) if prepared else process_obj)
        finally:
            set_spawning_popen(None)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """Return the exit code if the process has ended, else None; that of SIGKILL if its node is lost."""
        try:
            return self.wait(0)
        except NodeLostError:
            return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the end. Returns the exit code, None after `timeout` seconds. Raises NodeLostError, once."""
        if self.returncode is None:
            try:
                self.returncode = self._started.wait(timeout)
            except NodeLostError:
                self.returncode = -signal.SIGKILL
                raise
        return self.returncode

    def _send_signal(self, number: int) -> None:
        if self.poll() is None:
            self._started.signal(number)

    def interrupt(self) -> None:
        """Interrupt the process, by SIGINT."""
        self._send_signal(signal.SIGINT)


def _serves_manager(process_obj: _Process) -> bool:
    """Return whether a process is the server of a manager. It inherits a pipe of multiprocessing's, not of the user."""
    from multiprocessing.managers import BaseManager  # programs without managers do not load it

    owner = getattr(process_obj._target, "__self__", None)  # its target is a class method
    return isinstance(owner, type) and issubclass(owner, BaseManager)


def _preparation(process_obj: _Process) -> dict[str, Any]:
    """Return what other packages add to multiprocessing's data for a child, as coverage does to measure it."""
    get: Callable[[str], dict[str, Any]] = spawn.get_preparation_data
    if get.__module__ == spawn.__name__:
        return {}
    return {key: value for key, value in get(str(process_obj.name)).items() if key not in _SPAWNS_OWN}


# concurrent.futures.ProcessPoolExecutor with a "dragon" context. Its workers start together at the first task, as with
# "fork": one that dies while submit() starts another one would end the executor in the middle of that, which can hang
# (CPython issue 132969). With `max_tasks_per_child` the standard library counts a worker as idle for each result that
# it sent, also once the worker has ended, and starts no other in its place: the next task waits without end (CPython
# issue 115634). It also checks for results before it checks for ended workers; a worker that sends its last result and
# ends in between counts as failed.


def correct_executors(target: object) -> None:
    """Correct executors if `target`, which a new process runs, is the function of an executor's worker."""
    from concurrent.futures import process

    executor: type[Any] = process.ProcessPoolExecutor
    manager: type[Any] = process._ExecutorManagerThread
    if target is not process._process_worker or hasattr(executor, "_of_dragon"):
        return
    standard_start = executor._start_executor_manager_thread
    standard_adjust = executor._adjust_process_count
    standard_wait = manager.wait_result_broken_or_wakeup

    def start(self: Any) -> None:
        if self._mp_context.get_start_method() == "dragon" and self._executor_manager_thread is None:
            self._safe_to_dynamically_spawn_children = False
            while len(self._processes) < self._max_workers:
                self._spawn_process()
        standard_start(self)

    def adjust(self: Any) -> None:
        if self._max_tasks_per_child is None or self._mp_context.get_start_method() != "dragon":
            standard_adjust(self)
        elif len(self._processes) < self._max_workers:
            self._spawn_process()

    def wait(self: Any) -> object:
        if getattr(self, "max_tasks_per_child", None) is not None:
            # Events that end this wait are seen by the standard wait, in whatever order it checks them.
            sentinels = [worker.sentinel for worker in list(self.processes.values())]
            connection.wait([self.result_queue._reader, self.thread_wakeup._reader, *sentinels])
        return standard_wait(self)

    executor._start_executor_manager_thread, executor._adjust_process_count = start, adjust
    manager.wait_result_broken_or_wakeup, executor._of_dragon = wait, True
