"""The signals that end a program, and those that notify it."""

from __future__ import annotations

import signal
from collections.abc import Iterable

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""The signals that end an agent."""

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""The signals to a front end that it forwards to the program, to end it."""

NOTICES = (signal.SIGUSR1, signal.SIGUSR2)
"""The signals to a front end that it forwards as notifications, such as Slurm's that the time is nearly over."""

PROGRAMS_OWN = (signal.SIGINT, signal.SIGQUIT, *NOTICES)
"""The signals that a terminal or Slurm sends to all processes at once, and that the runtime's own processes ignore."""


def set_for_programs(handler: signal.Handlers) -> None:
    """Set this process's handler for the signals in PROGRAMS_OWN."""
    for number in PROGRAMS_OWN:
        signal.signal(number, handler)


def ignoring(numbers: Iterable[int]) -> list[int]:
    """Return the signal masks of an executable that ignores these signals from its start on."""
    return [sum(1 << number - 1 for number in numbers), 0, 0]


def hold_signals() -> set[int]:
    """Block the signals that end a program."""
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON))


def release_signals(before: set[int]) -> None:
    """Unblock the signals, so that those that arrived meanwhile are delivered."""
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
