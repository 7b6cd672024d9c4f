"""Signals of programs that start others: which to heed, how to end by them, and what to say of who ended by one."""

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
    """Those that this process was not started to ignore, as nohup has a program ignore a hang-up."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def leave(number: int, frame: FrameType | None) -> NoReturn:
    """A handler that ends this process in order, with the exit code of the signal."""
    raise SystemExit(128 + number)


def end_with_parent(number: Signals = signal.SIGTERM) -> None:
    """Have this process get the signal when its parent ends, be it by SIGKILL. Neither does it pass to children nor
    is it kept where a program with other rights is executed.

    Whose parent may have ended already asks os.getppid() afterwards. It may be called between fork and exec.
    """
    _core.prctl(_PR_SET_PDEATHSIG, number)


def name_of(number: int) -> str:
    """As programs write it. Python has no names for the real-time signals between the first and the last one."""
    try:
        return Signals(number).name
    except ValueError:
        return f"SIGRTMIN+{number - signal.SIGRTMIN}" if number > signal.SIGRTMIN else str(number)


def how_ended(code: int) -> str:
    """What an exit code says, negative ones being signals."""
    return f"signal {name_of(-code)}" if code < 0 else f"exit code {code}"
