"""What follows from the system's errors, by their numbers."""

from __future__ import annotations

import errno

__all__ = ["may_pass", "what_to_raise"]


def what_to_raise(number: int) -> str:
    """What to add to the words of a system's error of that number: the limit that was met, if it was one."""
    if number == errno.EAGAIN:
        return ": raise the limit of processes (ulimit -u, or the container's)"
    if number == errno.EMFILE:
        return ": raise the limit of open files (ulimit -n)"
    return ""


def may_pass(number: int) -> bool:
    """Whether a process that could not be started for that error may start later, when others have ended."""
    return number in (errno.EAGAIN, errno.ENOMEM)
