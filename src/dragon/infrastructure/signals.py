"""The signals that end a program."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from signal import Signals

__all__ = ["ENDING", "PASSED_ON", "heeded"]

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Those that end an agent."""

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""Those to a front end that are for the program it runs."""


def heeded(numbers: Iterable[Signals]) -> list[Signals]:
    """Those that this process was not started to ignore, as nohup has a program ignore a hang-up."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
