"""A run on this machine alone, with a head process that decides how it ends."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType
from typing import Any

from dragon.infrastructure.messages import Output
from dragon.runtime import plan
from dragon.runtime import run as run_module
from dragon.runtime.spawning import Started, environment_changes, new_request, start

__all__ = ["run"]

# Between a signal to the front end and the end of everything.
_GRACE = 10.0


def run(command: list[str], label: str) -> int:
    """Run the head process to its end; its exit code, negative for a signal. The whole run ends with it."""
    interrupts = _Interrupts()
    this = run_module.start_run(label, " ".join(command))
    run_module.become(run_module.Identity(name="front end"))  # the head is the user's program
    try:
        request, _record = new_request("head", folder=os.getcwd())
        request.streams = [Output(), Output(), Output()]
        request.executable, request.arguments = command[0], command[1:]
        request.environment = environment_changes(this)
        head = start(request)
        plan.note_head(command, request.puid)
        interrupts.head = head
        return _wait(head, interrupts)
    finally:
        run_module.end()


def _wait(head: Started, interrupts: _Interrupts) -> int:
    while True:
        code = head.wait(1.0)
        if code is not None:
            return code
        if interrupts.deadline is not None and time.monotonic() > interrupts.deadline:
            head.signal(signal.SIGKILL)


class _Interrupts:
    """Signals to the front end are the head process's, which has a while to end in order."""

    def __init__(self) -> None:
        self.head: Started | None = None
        self.deadline: float | None = None
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> Any:
        if self.head is None:
            raise SystemExit(128 + number)
        if self.deadline is None:
            self.deadline = time.monotonic() + _GRACE
        # From a terminal the head process had the signal already; Python takes a second SIGINT at once for one.
        if number != signal.SIGINT or not os.isatty(0):
            self.head.signal(number)
