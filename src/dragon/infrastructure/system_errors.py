"""What to do about errors of the system, by their numbers."""

from __future__ import annotations

import errno

__all__ = ["may_pass", "what_to_raise"]


def what_to_raise(number: int) -> str:
    """Return text to append to a system error: which limit to raise, or "" if it is not about a limit."""
    if number == errno.EAGAIN:
        return ": raise the limit of processes (ulimit -u, or the container's)"
    if number == errno.EMFILE:
        return ": raise the limit of open files (ulimit -n)"
    return ""


def may_pass(number: int) -> bool:
    """Return whether a process whose start failed with that error may be started later, when other processes have
    ended."""
    return number in (errno.EAGAIN, errno.ENOMEM)
