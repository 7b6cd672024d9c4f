"""Starts processes of the start method "dragon"."""

from __future__ import annotations

import os
import signal
from multiprocessing import spawn, util
from multiprocessing.context import set_spawning_popen
from typing import Any

from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.messages import Output, Spawn
from dragon.infrastructure.policy import Policy, PolicyError
from dragon.mpbridge.bootstrap import HEADER, InheritedDescriptor
from dragon.mpbridge.tracker import tracker_descriptor
from dragon.native.workers import work
from dragon.runtime import placement, plan, serialization
from dragon.runtime.handle import Words
from dragon.runtime.log import runtime_log
from dragon.runtime.placement import Placed
from dragon.runtime.run import this_run
from dragon.runtime.spawning import Started, current_folder, environment_changes, new_request, prepare_call, start
from dragon.runtime.unsendable import UNSENDABLE

__all__ = ["Popen"]

serialization.extend_multiprocessing()

_SPAWNS_OWN = {
    *("log_to_stderr", "log_level", "name", "authkey", "sys_path", "sys_argv", "orig_dir", "dir"),
    *("start_method", "init_main_from_name", "init_main_from_path"),
}


class Popen:
    """A started process, for multiprocessing's Process.

    Attributes:
        method: the name of the start method.
        DupFd: the class of inherited descriptors.
        returncode: the exit code once poll() or wait() has found it, negative for a signal; None before.
        pid: the process id on the process's node.
        puid: the number of the process, unique in the run.
        sentinel: a file descriptor that becomes readable when the process ends.
        finalizer: None.
    """

    method = "dragon"
    DupFd = InheritedDescriptor

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
        """Return a place on this node: a process that inherits descriptors cannot run on another one.

        Raises PolicyError if its policy names another node.
        """
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
        prepare_call(request, "dragon.mpbridge.bootstrap:run", lambda: self._payload(process_obj, local))
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
