"""The exceptions of a batch."""

from __future__ import annotations

from dragon.infrastructure.errors import DragonError


class BatchError(DragonError):
    """The base class of the errors of a batch."""


class SubmitAfterCloseError(BatchError, RuntimeError):
    """Raised if a task is submitted to a batch that has ended."""


class TaskNotReadyError(BatchError, TimeoutError):
    """Raised if the task has not ended within the timeout."""


class TaskCancelledError(BatchError):
    """Raised if the task, or one whose result it needs, was cancelled."""


class ReadAfterWriteDependencyError(BatchError):
    """Raised if another task has failed whose result this one needs, or whose data it reads."""
