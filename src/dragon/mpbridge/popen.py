"""How the start method "dragon" starts a process."""

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
    """A started process, for multiprocessing's Process."""

    method = "dragon"
    DupFd = InheritedDescriptor

    def __init__(self, process_obj: Any) -> None:
        util._flush_std_streams()  # type: ignore[attr-defined]
        self._descriptors: list[int] = []
        self.returncode: int | None = None
        try:
            self._started = self._launch(process_obj)
        except UNSENDABLE as error:
            raise error.with_traceback(None) from None  # what cannot be sent is the caller's, and not of these frames
        self.pid = self._started.pid
        self.puid = self._started.puid
        self.sentinel = self._started.sentinel
        self.finalizer = None

    def duplicate_for_child(self, fd: int) -> int:
        """Have the new process inherit a descriptor; returns what DupFd() takes."""
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
        """Descriptors cannot leave the node: a process that inherits some stays here."""
        if placed.named:
            raise PolicyError(f"{process_obj.name} inherits open files, so it cannot run on {placed.node.host_name}")
        here = placement.place(Policy(placement=Policy.Placement.LOCAL))
        if here.node.index != placed.node.index:
            _tell_of_descriptors(process_obj.name)
        return here

    def _request(self, process_obj: Any, placed: Placed, local: bool) -> tuple[Spawn, Words]:
        self._descriptors = []
        folder = current_folder(local)
        name = str(process_obj.name)  # multiprocessing takes anything for one
        request, record = new_request(name, cpus=placed.mask, folder=folder, node=placed.node.index)
        request.environment = environment_changes(this_run(), placed.environment)
        # As in the standard library, but for the workers of a pool: what they have started ends with them.
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
        """The exit code if it has ended, as if by SIGKILL where its node is lost."""
        try:
            return self.wait(0)
        except NodeLostError:
            return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code; None after `timeout` seconds. Raises NodeLostError, once, where its node is lost."""
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
        """Ask it to end (SIGTERM)."""
        self._send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it (SIGKILL)."""
        self._send_signal(signal.SIGKILL)

    def interrupt(self) -> None:
        """Interrupt it (SIGINT)."""
        self._send_signal(signal.SIGINT)

    def close(self) -> None:
        """Give the process up; multiprocessing calls this once it has ended."""


_told: list[str] = []


def _tell_of_descriptors(name: str) -> None:
    if not _told:
        _told.append(name)
        runtime_log("processes").warning(
            "%s inherits open files, which stay on a node: it runs on this one, as all do that inherit some", name
        )


def _preparation(process_obj: Any) -> dict[str, Any]:
    """What others add to what multiprocessing's spawn tells a child, as coverage does to measure children too."""
    get: Any = spawn.get_preparation_data
    if get.__module__ == spawn.__name__:
        return {}
    return {key: value for key, value in get(str(process_obj.name)).items() if key not in _SPAWNS_OWN}
