"""Errors of the system: whose they are, and what to do about them."""

from __future__ import annotations

import errno


def what_to_raise(number: int) -> str:
    """Return text to append to a system error: which limit to raise, or "" if it is not about a limit."""
    if number == errno.EAGAIN:
        return ": raise the limit of processes (ulimit -u, or the container's)"
    if number == errno.EMFILE:
        return ": raise the limit of open files (ulimit -n)"
    return ""


def is_of_handler(error: BaseException) -> bool:
    """Return whether a signal handler of the program raised a caught error, such as an alarm's TimeoutError, and not a
    call of this package."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in ("dragon", "socket"):
            return True
        trace = trace.tb_next
    return False


def may_pass(number: int) -> bool:
    """Return whether a process whose start failed with that error may be started later, when other processes have
    ended."""
    return number in (errno.EAGAIN, errno.ENOMEM)
