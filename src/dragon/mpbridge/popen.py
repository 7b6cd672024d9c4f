"""How the start method "dragon" starts a process, and what that process runs first."""

from __future__ import annotations

import os
import signal
from multiprocessing import process as mp_process
from multiprocessing import resource_tracker, spawn, util
from multiprocessing.context import set_spawning_popen
from typing import Any

from dragon.infrastructure.messages import Output, Spawn
from dragon.runtime import placement, serialization
from dragon.runtime.run import this_run
from dragon.runtime.spawning import Started, environment_changes, new_request, prepare_call, start

__all__ = ["Popen", "bootstrap"]


class _InheritedDescriptor:
    """A descriptor that a new process gets, as reduction.DupFd() makes it."""

    def __init__(self, index: int) -> None:
        self.index = index

    def detach(self) -> int:
        """The descriptor in the new process."""
        return os.dup(_inherited[self.index])


_inherited: list[int] = []


class Popen:
    """A started process, for multiprocessing's Process."""

    method = "dragon"
    DupFd = _InheritedDescriptor

    def __init__(self, process_obj: Any) -> None:
        util._flush_std_streams()  # type: ignore[attr-defined]
        self._descriptors: list[int] = []
        self.returncode: int | None = None
        self._started = self._launch(process_obj)
        self.pid = self._started.pid
        self.puid = self._started.puid
        self.sentinel = self._started.sentinel
        self.finalizer = None

    def duplicate_for_child(self, fd: int) -> int:
        """Have the new process inherit a descriptor; returns what DupFd() takes."""
        self._descriptors.append(fd)
        return len(self._descriptors) - 1

    def _launch(self, process_obj: Any) -> Started:
        run = this_run()
        placed = placement.place(None)
        request, _record = new_request(process_obj.name, cpus=placed.cpus, folder=os.getcwd())
        request.environment = environment_changes(run, placed.environment)
        request.streams = [Output("null"), Output(), Output()]
        prepare_call(request, "dragon.mpbridge.popen:bootstrap", lambda: self._payload(request, process_obj))
        return start(request, self._descriptors)

    def _payload(self, request: Spawn, process_obj: Any) -> bytes:
        data = spawn.get_preparation_data(process_obj.name)
        # The zygote has imported the main program, or it must not be imported.
        for key in ("init_main_from_name", "init_main_from_path"):
            data.pop(key, None)
        tracker = getattr(resource_tracker._resource_tracker, "_fd", None)  # type: ignore[attr-defined]
        tracker_index = None if tracker is None else self.duplicate_for_child(tracker)
        set_spawning_popen(self)
        try:
            prepared = serialization.dumps((data, os.getpid(), tracker_index))
            return len(prepared).to_bytes(4, "little") + prepared + serialization.dumps(process_obj)
        finally:
            set_spawning_popen(None)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """The exit code if it has ended."""
        return self.wait(0)

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit code; None after `timeout` seconds."""
        if self.returncode is None:
            self.returncode = self._started.wait(timeout)
        return self.returncode

    def _send_signal(self, number: int) -> None:
        if self.returncode is None:
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


def bootstrap(payload: bytes | memoryview, descriptors: list[int]) -> int:
    """Run the process object that Popen wrote; returns its exit code."""
    _inherited[:] = descriptors
    current = mp_process.current_process()
    current._inheriting = True  # type: ignore[attr-defined]
    try:
        # What the process object's unpickling needs is put in place before.
        end = 4 + int.from_bytes(payload[:4], "little")
        data, parent, tracker_index = serialization.loads(payload[4:end])
        spawn.prepare(data)
        process_obj = serialization.loads(payload[end:])
    finally:
        del current._inheriting  # type: ignore[attr-defined]
    try:
        parent_sentinel = os.pidfd_open(parent)
    except ProcessLookupError:
        parent_sentinel = os.eventfd(1)  # it has ended: readable for ever
    if tracker_index is not None:
        resource_tracker._resource_tracker._fd = os.dup(descriptors[tracker_index])  # type: ignore[attr-defined]
    for fd in descriptors:
        os.close(fd)
    code: int = process_obj._bootstrap(parent_sentinel=parent_sentinel)
    return code
