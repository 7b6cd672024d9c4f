"""Starts processes of the start method "dragon"."""

from __future__ import annotations

import atexit
import os
import select
import signal
import struct
import sys
from multiprocessing import spawn, util
from multiprocessing.context import set_spawning_popen
from typing import Any

from dragon import _core
from dragon.infrastructure import cpython
from dragon.infrastructure.errors import NodeLostError, RunEndedError
from dragon.infrastructure.messages import Output, Spawn
from dragon.infrastructure.policy import Policy, PolicyError
from dragon.native.workers import work
from dragon.runtime import placement, serialization
from dragon.runtime import placement as plan
from dragon.runtime.agent_client import ask, tell
from dragon.runtime.handle import Words
from dragon.runtime.log import runtime_log
from dragon.runtime.placement import Placed
from dragon.runtime.protocol.processes import GiveTrackerBack, KeepTracker
from dragon.runtime.run import this_run
from dragon.runtime.spawning import (
    Started,
    current_folder,
    environment_changes,
    new_request,
    prepare_call,
    standard_streams,
    start,
)
from dragon.runtime.unsendable import UNSENDABLE


def tracker_descriptor() -> int:
    """Return the descriptor of this process's tracker. Raises RunEndedError if there is none, and no agent to
    start it."""
    with _TRACKER._lock:
        if _TRACKER._fd is not None and _is_broken(_TRACKER._fd):
            _leave()
        if _TRACKER._fd is None:
            _TRACKER._fd = _new_tracker()
        return int(_TRACKER._fd)


def _is_broken(pipe: int) -> bool:
    events = select.poll()
    events.register(pipe, 0)
    return bool(events.poll(0))


def _new_tracker() -> int:
    reading, writing = os.pipe()
    try:
        with standard_streams() as (_, _, errors):
            tell(KeepTracker(os.getpid()), [reading, errors])
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
    """Release the tracker if it is unused, because the run ends before this process, which then starts its own if
    needed."""
    with _TRACKER._lock:
        if _TRACKER._fd is None:
            return
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
    """Stop using the tracker; multiprocessing calls this at the end of its own tests. Older versions would wait for the
    tracker, which is the agent's child."""
    if _TRACKER._fd is not None and _TRACKER._pid is None:
        _leave()
    else:
        type(_TRACKER)._stop(_TRACKER)


class InheritedDescriptor:
    """A file descriptor that a new process inherits, with the interface of reduction.DupFd()."""

    def __init__(self, index: int) -> None:
        self.index = index

    def detach(self) -> int:
        """Return the descriptor in the new process."""
        return os.dup(_inherited[self.index])


_HONOURS_ATEXIT = sys.version_info >= (3, 13)  # multiprocessing calls atexit handlers from 3.13 on

_TRACKER = cpython.resource_tracker()

_inherited: list[int] = []

# Precedes the process object: the parent's pid, whether the parent is on the same node, and the parent's descriptor of
# its resource tracker with the inode of that pipe. The tracker must be set before objects are made that it tracks.
HEADER = struct.Struct("<i?iQ")


def _tracker_of(process: int, descriptor: int, inode: int) -> int | None:
    """Return a descriptor of another node's tracker if both nodes are simulated on one machine and share its memory,
    else None."""
    path = f"/proc/{process}/fd/{descriptor}"
    try:
        if os.stat(path).st_ino != inode:
            return None
        tracker = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None  # the process is on another machine, or has ended
    os.set_blocking(tracker, True)
    return tracker


def run(payload: bytes | memoryview, descriptors: list[int]) -> int:
    """Run the process object that Popen wrote, and return its exit code."""
    _inherited[:] = descriptors
    parent, local, tracker, inode = HEADER.unpack_from(payload)
    shared = descriptors[0] if local else _tracker_of(parent, tracker, inode)
    if shared is not None:
        os.set_inheritable(shared, False)  # a fresh interpreter inherits it as inheritable
        # Importing the main program may have started a tracker in the zygote.
        _TRACKER._pid = None
        _TRACKER._fd = shared
    with cpython.making():
        process_obj = serialization.loads(memoryview(payload)[HEADER.size :])
        if isinstance(process_obj, tuple):  # (preparation data, process object); loading the data has its effect
            process_obj = process_obj[1]
    try:
        # No descriptor shows the end of a parent on another node: this one never becomes readable.
        parent_sentinel = _core.open_process(parent) if local else os.eventfd(0)
    except ProcessLookupError:
        parent_sentinel = os.eventfd(1)  # the parent has ended: always readable
    for fd in descriptors[1:]:
        os.close(fd)
    if _HONOURS_ATEXIT:
        cpython.forget_exit_handlers()  # those registered by importing the main program are for the main process
        atexit.register(cpython.end_multiprocessing)
    if sys.stdin is sys.__stdin__ and sys.stdin is not None and not sys.stdin.closed:
        cpython.leave_stdin()
    code: int = process_obj._bootstrap(parent_sentinel=parent_sentinel)
    if _HONOURS_ATEXIT:
        cpython.call_exit_handlers()
        cpython.flush_streams()
    return code


serialization.extend_multiprocessing()

_SPAWNS_OWN = {
    *("log_to_stderr", "log_level", "name", "authkey", "sys_path", "sys_argv", "orig_dir", "dir"),
    *("start_method", "init_main_from_name", "init_main_from_path"),
}


class Popen:
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

    def __init__(self, process_obj: Any) -> None:
        util._flush_std_streams()  # type: ignore[attr-defined]
        self._descriptors: list[int] = []
        self.returncode: int | None = None
        try:
            self._started = self._launch(process_obj)
        except UNSENDABLE as error:
            raise error.with_traceback(None) from None  # the object is the caller's; these frames would only distract
        self.pid = self._started.pid
        self.puid = self._started.puid
        self.sentinel = self._started.sentinel
        self.finalizer = None

    def duplicate_for_child(self, fd: int) -> int:
        """Make the new process inherit a descriptor. Returns the argument for DupFd()."""
        self._descriptors.append(fd)
        return len(self._descriptors) - 1

    def _launch(self, process_obj: Any) -> Started:
        placed = placement.place(None)
        local = placed.is_local
        request, _record = self._request(process_obj, placed, local)
        if self._descriptors and not local:
            placed = self._place_here(process_obj, placed)
            request, _record = self._request(process_obj, placed, True)
        started = start(request, self._descriptors)
        plan.note(placed, request.name, plan.name_of(process_obj._target or process_obj.run), request.puid)
        return started

    @staticmethod
    def _place_here(process_obj: Any, placed: Placed) -> Placed:
        """Return a place on this node: a process that inherits descriptors cannot run on another one."""
        if placed.named:
            raise PolicyError(f"{process_obj.name} inherits open files, so it cannot run on {placed.node.host_name}")
        here = placement.place(Policy(placement=Policy.Placement.LOCAL))
        if here.node.index != placed.node.index and not _serves_manager(process_obj):
            _tell_of_descriptors(process_obj.name)
        return here

    def _request(self, process_obj: Any, placed: Placed, local: bool) -> tuple[Spawn, Words]:
        self._descriptors = []
        folder = current_folder(local)
        name = str(process_obj.name)  # multiprocessing accepts any object as a name
        request, record = new_request(name, cpus=placed.mask, folder=folder, node=placed.node.index)
        request.environment = environment_changes(this_run(), placed.environment)
        # As in the standard library, except for workers of a pool: the processes that they started end with them.
        request.leave_running = process_obj._target is not work
        request.streams = [Output("null"), Output(), Output()]
        prepare_call(request, "dragon.mpbridge.popen:run", lambda: self._payload(process_obj, local))
        return request, record

    def _payload(self, process_obj: Any, local: bool) -> bytes:
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
        """Return the exit code if the process has ended, else None. If its node is lost, the code is that of
        SIGKILL."""
        try:
            return self.wait(0)
        except NodeLostError:
            return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the process to end. Returns its exit code, or None after `timeout` seconds.

        Raises NodeLostError, once, if its node is lost.
        """
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

    def terminate(self) -> None:
        """Ask the process to end, by SIGTERM."""
        self._send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process, by SIGKILL."""
        self._send_signal(signal.SIGKILL)

    def interrupt(self) -> None:
        """Interrupt the process, by SIGINT."""
        self._send_signal(signal.SIGINT)

    def close(self) -> None:
        """Do nothing; multiprocessing calls this once the process has ended."""


def _serves_manager(process_obj: Any) -> bool:
    """Return whether a process is the server of a manager. It inherits a pipe of multiprocessing's, not of the user."""
    from multiprocessing.managers import BaseManager  # programs without managers do not load it

    owner = getattr(process_obj._target, "__self__", None)  # its target is a class method
    return isinstance(owner, type) and issubclass(owner, BaseManager)


_told: list[str] = []


def _tell_of_descriptors(name: str) -> None:
    if not _told:
        _told.append(name)
        runtime_log("processes").warning(
            "%s inherits open files, which other nodes cannot use: such processes run on this node", name
        )


def _preparation(process_obj: Any) -> dict[str, Any]:
    """Return the data that other packages add to multiprocessing's spawn for a child, as coverage does to measure
    children."""
    get: Any = spawn.get_preparation_data
    if get.__module__ == spawn.__name__:
        return {}
    return {key: value for key, value in get(str(process_obj.name)).items() if key not in _SPAWNS_OWN}
