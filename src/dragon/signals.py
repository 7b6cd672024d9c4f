"""Signals in programs that start others: which ones to handle, how to end by one, and how to name one in a message."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from signal import Signals
from types import FrameType
from typing import NoReturn

from dragon import _core

__all__ = ["end_with_parent", "heeded", "how_ended", "leave", "name_of"]

_PR_SET_PDEATHSIG = 1


def heeded(numbers: Iterable[Signals]) -> list[Signals]:
    """Return the signals that this process was not started to ignore, as nohup makes a program ignore SIGHUP."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """Handle a signal: end this process in order, with the exit code 128 plus the signal's number."""
    raise SystemExit(128 + number)


def end_with_parent(number: Signals = signal.SIGTERM) -> None:
    """Make the kernel send this process a signal when its parent ends, also if that is killed.

    The setting is not inherited by children, and is lost when a program with other rights is executed. The parent may
    have ended before the call: check os.getppid() afterwards. May be called between fork and exec.
    """
    _core.prctl(_PR_SET_PDEATHSIG, number)


def name_of(number: int) -> str:
    """Return the name of a signal, also of the real-time signals between the first and the last, which Python does not
    name."""
    try:
        return Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if number > signal.SIGRTMIN else str(number)


def how_ended(code: int) -> str:
    """Return words for an exit code, of which a negative one is a signal."""
    return f"signal {name_of(-code)}" if code < 0 else f"exit code {code}"
