"""A run on this machine alone, with a head process that decides how it ends."""

from __future__ import annotations

import os
import select
import signal
import struct
import time

from dragon import _core
from dragon.infrastructure.messages import Output
from dragon.infrastructure.signals import NOTICES, PASSED_ON, heeded, leave
from dragon.infrastructure.system_text import sendable
from dragon.runtime import plan
from dragon.runtime import run as run_module
from dragon.runtime.folder import Owner, is_alive
from dragon.runtime.log import runtime_log
from dragon.runtime.spawning import Started, current_folder, environment_changes, new_request, start

__all__ = ["run"]

log = runtime_log("frontend")

# Between a signal to the front end and the end of everything.
_GRACE = 10.0
_LOOK = 1.0  # seconds
_DYING = 0.5  # seconds for which a process that is killed may still be seen
_FROM_KERNEL = 0x80  # SI_KERNEL
_SIGNAL = struct.Struct("=Iii116x")  # signalfd_siginfo: number, errno, code, and more


def run(command: list[str], label: str) -> int:
    """Run the head process to its end; its exit code, negative for a signal. The whole run ends with it."""
    numbers = heeded(PASSED_ON)
    for number in numbers:
        signal.signal(number, leave)
    this = run_module.start_run(label, " ".join(command))
    run_module.become(run_module.Identity(name="front end"))  # the head is the user's program
    try:
        request, _record = new_request("head", folder=current_folder())
        request.streams = [Output(), Output(), Output()]
        request.leave_running = True  # what it leaves ends with the run, which waits for it
        request.executable, *request.arguments = map(sendable, command)
        request.environment = environment_changes(this)
        # From now on they are the head process's, also those that come while it starts.
        signals = _core.signal_descriptor([*numbers, *heeded(NOTICES)], [])
        head = start(request)
        plan.note_head(command, request.puid)
        return _wait(head, signals, this.agent)
    finally:
        run_module.end()


def _wait(head: Started, signals: int, agent: Owner) -> int:
    """Pass signals on until the head process has ended; after one that ends it, it has a while to do so in order."""
    events = select.poll()
    for descriptor in (signals, head.sentinel):
        events.register(descriptor, select.POLLIN)
    deadline: float | None = None
    while True:
        ready = [descriptor for descriptor, _ in events.poll(_LOOK * 1000)]
        if signals in ready and _pass_on(head, signals) in PASSED_ON:
            deadline = deadline or time.monotonic() + _GRACE
        code = head.wait(_LOOK if head.sentinel in ready else 0.0)
        if code is not None:
            if deadline is None and _has_ended(agent, code):
                log.error("the agent (pid %d) has ended, and all processes of the run with it", agent.pid)
            return code
        if deadline is not None and time.monotonic() > deadline:
            head.signal(signal.SIGKILL)


def _has_ended(agent: Owner, code: int) -> bool:
    """Whether the agent has ended before the head process did, and ended it so: that may be seen first."""
    end = time.monotonic() + (_DYING if -code in (signal.SIGTERM, signal.SIGKILL) else 0.0)
    while is_alive(agent):
        if time.monotonic() >= end:
            return False
        time.sleep(0.01)
    return True


def _pass_on(head: Started, signals: int) -> int:
    number, _, code = _SIGNAL.unpack(os.read(signals, _SIGNAL.size))
    # What the terminal sends, it sends to the head process too; Python takes a second SIGINT at once for another one.
    # But that it is closed it tells the leader of its session alone.
    if code != _FROM_KERNEL or (number == signal.SIGHUP and os.getsid(0) == os.getpid()):
        head.signal(number)
    return int(number)
