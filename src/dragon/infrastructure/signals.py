"""The signals that end a program, and those that tell it something."""

from __future__ import annotations

import signal

__all__ = [
    "ENDING",
    "NOTICES",
    "PASSED_ON",
    "PROGRAMS_OWN",
    "hold_signals",
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
