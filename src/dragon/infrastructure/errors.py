"""The exceptions that users meet. Each message says what was being done, where, and what to do about it; where the
system gives the words, `what_to_raise` adds to them."""

from __future__ import annotations

import errno

from dragon._core import DestroyedError

__all__ = [
    "DestroyedError",
    "DragonError",
    "DragonLoggingError",
    "NodeLostError",
    "NotSupportedError",
    "PolicyError",
    "RunEndedError",
    "may_pass",
    "what_to_raise",
]


class DragonError(Exception):
    """Any error of the runtime."""


class DragonLoggingError(DragonError):
    """Base class of the errors of process groups and dictionaries."""


class RunEndedError(DragonError):
    """The run that an operation needs has ended, or cannot be started."""


class NodeLostError(DragonError, ConnectionError):
    """A node of the run that an operation needs is gone, or cannot be reached."""


class PolicyError(DragonError, ValueError):
    """A policy that makes no sense or that no node of the run can meet."""


class NotSupportedError(DragonError, NotImplementedError):
    """Something that this project deliberately does not offer; the message says what to use."""


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
