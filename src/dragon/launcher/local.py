"""Runs a program on this machine only; the run ends with its head process."""

from __future__ import annotations

import os
import select
import signal
import struct
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dragon import _core
from dragon.infrastructure import variables
from dragon.infrastructure.signals import NOTICES, PASSED_ON
from dragon.infrastructure.start_request import Output
from dragon.infrastructure.system import sendable
from dragon.runtime import run as run_module
from dragon.runtime.folder import Owner, is_alive, process_start_time
from dragon.signals import end_with_parent, heeded, leave

if TYPE_CHECKING:
    from dragon.runtime.spawning import Started

_TOLD = struct.Struct("=id")
_GROUP_SIGNAL_S = 0.05  # seconds within which a signal to a group is pending in all of its processes
_BUSY_S = 10.0  # seconds that the child may take, on a busy machine, to report a signal that is pending in it


class Witness:
    """Observes signals until it is closed. It must be made while this process blocks the signals, and has no
    threads."""

    def __init__(self, numbers: Iterable[int]) -> None:
        self._told, bell = os.pipe()
        self._times: dict[int, float] = {}
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _look_on(parent, bell, set(numbers))
            finally:
                os._exit(0)
        os.close(bell)

    def time_of(self, number: int) -> float | None:
        """Return when the group received a signal that this process has just received, in seconds since the system's
        start; None if only this process received it."""
        waiting = select.poll()
        waiting.register(self._told, select.POLLIN)
        deadline = time.monotonic() + _BUSY_S
        while number not in self._times:
            idle = self._is_idle(number)
            if not waiting.poll(_GROUP_SIGNAL_S * 1000):
                if (idle and self._is_idle(number)) or time.monotonic() > deadline:
                    break
                continue
            data = os.read(self._told, _TOLD.size)
            if not data:
                break
            told, when = _TOLD.unpack(data)
            self._times[told] = when
        return self._times.pop(number, None)

    def _is_idle(self, number: int) -> bool:
        """Return whether the child sleeps and that signal is not pending in it, so that it has nothing to report."""
        try:
            with open(f"/proc/{self._pid}/status") as status:
                fields = dict(line.split(":\t", 1) for line in status)
        except (FileNotFoundError, ProcessLookupError):
            return True  # the child was killed
        return fields["State"].startswith("S") and not int(fields["ShdPnd"], 16) >> (number - 1) & 1

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._told)


def _look_on(parent: int, bell: int, numbers: set[int]) -> None:
    end_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        return
    while True:
        number = signal.sigwait(numbers)
        os.write(bell, _TOLD.pack(number, time.clock_gettime(time.CLOCK_BOOTTIME)))


# Seconds between a signal to the front end and the end of everything.
_SIGNAL_TIMEOUT_S = 10.0
_POLL_S = 1.0
_KILLED_VISIBLE_S = 0.5  # seconds for which a killed process may still be visible
_SIGNAL = struct.Struct("=Iii116x")  # signalfd_siginfo: number, errno, code, and more


def run(command: list[str], label: str) -> int:
    """Run the head process to its end. Returns its exit code, negative for a signal. The whole run ends with it."""
    numbers = [*heeded(PASSED_ON), *heeded(NOTICES)]
    given = _core.current_signals()
    # From now on signals are read at defined points, so that no operation is interrupted halfway.
    signals = _core.signal_descriptor(numbers, [])
    witness = Witness(numbers)
    try:
        this = run_module.start_run(label, " ".join(command))
        # Imported while the agent starts.
        from dragon.runtime import placement as plan
        from dragon.runtime.spawning import current_folder, environment_changes, new_request, start

        run_module.become(run_module.Identity(name="front end"))  # the head is the user's program
        request = new_request("head", folder=current_folder())
        request.streams = [Output(), Output(), Output()]
        request.leave_running = True  # processes that it leaves running end with the run, which waits for them
        request.signals = given
        request.executable, *request.arguments = map(sendable, command)
        request.environment = environment_changes(this)
        _leave_if_asked(signals)
        head = start(request)
        plan.note_head(command, request.puid)
        return _wait(head, signals, witness, this.agent)
    finally:
        run_module.end()
        witness.close()


def _leave_if_asked(signals: int) -> None:
    """End this process if a signal has come that ends the program, which has not started yet."""
    asked = select.poll()
    asked.register(signals, select.POLLIN)
    while asked.poll(0):
        number, _, _ = _SIGNAL.unpack(os.read(signals, _SIGNAL.size))
        if number in PASSED_ON:
            leave(number, None)


def _wait(head: Started, signals: int, witness: Witness, agent: Owner) -> int:
    """Forward signals until the head process has ended. After a signal that ends it, it is killed 10 s later."""
    events = select.poll()
    for descriptor in (signals, head.sentinel):
        events.register(descriptor, select.POLLIN)
    deadline: float | None = None
    while True:
        ready = [descriptor for descriptor, _ in events.poll(_POLL_S * 1000)]
        if signals in ready and _pass_on(head, signals, witness) in PASSED_ON:
            deadline = deadline or time.monotonic() + max(_SIGNAL_TIMEOUT_S, variables.grace())
        code = head.wait(_POLL_S if head.sentinel in ready else 0.0)
        if code is not None:
            if deadline is None and _has_ended(agent, code):
                from dragon.runtime.log import runtime_log

                runtime_log("frontend").error(
                    "the agent (pid %d) has ended, and all processes of the run with it", agent.pid
                )
            return code
        if deadline is not None and time.monotonic() > deadline:
            head.signal(signal.SIGKILL)


def _has_ended(agent: Owner, code: int) -> bool:
    """Return whether the agent ended before the head process and killed it; the latter may be noticed first."""
    end = time.monotonic() + (_KILLED_VISIBLE_S if -code in (signal.SIGTERM, signal.SIGKILL) else 0.0)
    while is_alive(agent):
        if time.monotonic() >= end:
            return False
        time.sleep(0.01)
    return True


def _pass_on(head: Started, signals: int, witness: Witness) -> int:
    number, _, _ = _SIGNAL.unpack(os.read(signals, _SIGNAL.size))
    # A signal to the whole process group, as from a terminal, also reached the head process if it existed, and Python
    # would handle a second SIGINT as another one. But a closed terminal sends SIGHUP only to the session leader.
    came = witness.time_of(number)
    if came is None or came < _start_of(head) or (number == signal.SIGHUP and os.getsid(0) == os.getpid()):
        head.signal(number)
    return int(number)


def _start_of(process: Started) -> float:
    """Return when a process was started, rounded up to a clock tick, in seconds since the system's start."""
    ticks = process_start_time(process.pid)
    return 0.0 if ticks is None else (ticks + 1) / os.sysconf("SC_CLK_TCK")
