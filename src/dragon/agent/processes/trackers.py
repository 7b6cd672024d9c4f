"""Python's trackers of shared memory: each is a separate interpreter, which is started when it gets its first
message."""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from dragon import _core
from dragon.infrastructure.system import what_to_raise
from dragon.runtime.folder import process_start_time
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.processes import GiveTrackerBack, KeepTracker
from dragon.runtime.protocol.request import Handler

log = runtime_log("agent")

_RESTART_DELAY_S = 1.0  # seconds between two attempts to start one
_END_WITHIN_S = 5.0  # seconds to wait until a tracker has removed what no process uses any more


class _Idle(NamedTuple):
    """A tracker that is not started: its pipe, its stderr, and the process that it is for."""

    reading: int
    errors: int
    process: int

    @property
    def is_told(self) -> bool:
        events = select.poll()
        events.register(self.reading, select.POLLIN)
        return any(event & select.POLLIN for _, event in events.poll(0))


class Trackers:
    """The trackers of this node. A tracker is identified by the inode of its pipe."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._idle: dict[int, _Idle] = {}
        self._running: dict[int, tuple[int, asyncio.Future[None]]] = {}  # by process id: the process it is for; its end

    @property
    def processes(self) -> set[int]:
        """The process ids of the trackers that were started."""
        return set(self._running)

    def handlers(self) -> list[Handler]:
        """Return the handlers of the requests that this object serves."""
        return [
            KeepTracker.served_for(lambda r, caller: self.keep(r.process, caller.descriptors)),
            GiveTrackerBack.served_by(lambda r: self.give_back(r.pipe)),
        ]

    def keep(self, process: int, descriptors: Sequence[int]) -> None:
        """Start a tracker for a process once its pipe, the first descriptor, has something to read."""
        reading, errors = map(os.dup, descriptors)
        pipe = os.fstat(reading).st_ino
        self._idle[pipe] = _Idle(reading, errors, process)
        self.loop.add_reader(reading, self._look, pipe)

    def give_back(self, pipe: int) -> bool:
        """Remove a tracker that has got no message. Returns False if it has, or is unknown."""
        idle = self._idle.get(pipe)
        if idle is None or idle.is_told:
            return False
        self._forget(pipe)
        return True

    def _forget(self, pipe: int) -> None:
        idle = self._idle.pop(pipe)
        self.loop.remove_reader(idle.reading)
        os.close(idle.reading)
        os.close(idle.errors)

    def _look(self, pipe: int) -> None:
        """Start a tracker that has got a message; remove it if all writers of its pipe have ended."""
        idle = self._idle.get(pipe)
        if idle is None:
            return
        if idle.is_told and not self._start(idle):
            self.loop.remove_reader(idle.reading)
            self.loop.call_later(_RESTART_DELAY_S, self._look, pipe)
        else:
            self._forget(pipe)

    def _start(self, idle: _Idle) -> bool:
        os.set_blocking(idle.reading, True)  # the event loop has made it non-blocking
        program = f"from multiprocessing.resource_tracker import main; main({idle.reading})"
        try:
            # In its own session, so that signals of a terminal do not end it before it is ready.
            tracker = subprocess.Popen(
                [sys.executable, "-I", "-c", program],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=idle.errors,
                pass_fds=[idle.reading],
                start_new_session=True,
            )
        except OSError as error:
            limit = what_to_raise(error.errno or 0)
            log.warning("Python's tracker of shared memory does not start: %s%s", error, limit)
            return False
        self._running[tracker.pid] = (idle.process, self.loop.create_future())
        gone = _core.open_process(tracker.pid)
        self.loop.add_reader(gone, self._on_end, tracker, gone)
        return True

    def _on_end(self, tracker: subprocess.Popen[bytes], gone: int) -> None:
        self.loop.remove_reader(gone)
        os.close(gone)
        tracker.wait()
        self._running.pop(tracker.pid)[1].set_result(None)

    async def finish(self) -> None:
        """Wait, at the end of the run, until trackers whose processes have ended have removed their files."""
        for pipe in list(self._idle):
            self._look(pipe)
        ends = [ended for process, ended in self._running.values() if process_start_time(process) is None]
        if ends:
            await asyncio.wait(ends, timeout=_END_WITHIN_S)
