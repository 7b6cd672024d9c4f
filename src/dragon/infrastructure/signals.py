"""The signals that end a program, and those that tell it something."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from signal import Signals
from types import FrameType
from typing import NoReturn

__all__ = [
    "ENDING",
    "NOTICES",
    "PASSED_ON",
    "PROGRAMS_OWN",
    "PR_SET_PDEATHSIG",
    "heeded",
    "hold_signals",
    "how_ended",
    "leave",
    "name_of",
    "release_signals",
    "set_for_programs",
]

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Those that end an agent."""

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Those to a front end that end the program it runs."""

NOTICES = (signal.SIGUSR1, signal.SIGUSR2)
"""Those to a front end that the program is told and goes on, as Slurm's that its time is nearly over."""

PROGRAMS_OWN = (signal.SIGINT, signal.SIGQUIT, *NOTICES)
"""Those that a terminal or Slurm sends to all processes at once, and of which the runtime's own take no notice."""


PR_SET_PDEATHSIG = 1
"""The option of prctl() that has a process get a signal when its parent ends."""


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """A handler that ends this process in order, with the exit code of the signal."""
    raise SystemExit(128 + number)


def set_for_programs(handler: signal.Handlers) -> None:
    """Set what this process does when it gets one of the program's own."""
    for number in PROGRAMS_OWN:
        signal.signal(number, handler)


def hold_signals() -> set[int]:
    """Those that end a program come later, after release_signals() of what this returns."""
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON))


def release_signals(before: set[int]) -> None:
    """Let what came meanwhile come now."""
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def heeded(numbers: Iterable[Signals]) -> list[Signals]:
    """Those that this process was not started to ignore, as nohup has a program ignore a hang-up."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def name_of(number: int) -> str:
    """As programs write it. Python has no names for the real-time signals between the first and the last one."""
    try:
        return Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if number > signal.SIGRTMIN else f"signal {number}"


def how_ended(code: int) -> str:
    """What an exit code says, negative ones being signals."""
    return f"signal {name_of(-code)}" if code < 0 else f"exit code {code}"
