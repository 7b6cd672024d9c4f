"""The exceptions that users see. Each message says what was being done, where, and what to do about it."""

from __future__ import annotations

from dragon._core import DestroyedError

__all__ = [
    "DestroyedError",
    "DragonError",
    "DragonLoggingError",
    "DragonNodeError",
    "NodeLostError",
    "NotSupportedError",
    "PolicyError",
    "ProcessError",
    "RunEndedError",
]


class DragonError(Exception):
    """The base class of the errors of the runtime."""


class DragonLoggingError(DragonError):
    """Base class of the errors of process groups and dictionaries."""


class RunEndedError(DragonError):
    """The run that an operation needs has ended, or cannot be started."""


class NodeLostError(DragonError, ConnectionError):
    """A node of the run that an operation needs is lost, or cannot be reached."""


class DragonNodeError(DragonError, LookupError):
    """A node that the run does not have."""


class ProcessError(DragonError):
    """A process that cannot be started, found or waited for."""


class PolicyError(DragonError, ValueError):
    """A policy that is not valid or that no node of the run can satisfy."""


class NotSupportedError(DragonError, NotImplementedError):
    """A feature that this project deliberately does not support; the message says what to use instead."""
