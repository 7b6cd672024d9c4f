"""The exceptions of a batch."""

from __future__ import annotations

from dragon.infrastructure.errors import DragonError

__all__ = [
    "BatchError",
    "ReadAfterWriteDependencyError",
    "SubmitAfterCloseError",
    "TaskCancelledError",
    "TaskNotReadyError",
]


class BatchError(DragonError):
    """Any error of a batch."""


class SubmitAfterCloseError(BatchError, RuntimeError):
    """A task was submitted to a batch that has ended."""


class TaskNotReadyError(BatchError, TimeoutError):
    """The task has not ended yet, or not within the time that was given."""


class TaskCancelledError(BatchError):
    """The task was cancelled, or one whose result it needs."""


class ReadAfterWriteDependencyError(BatchError):
    """The task needs the result of another one, or reads data that it should have written, and that one failed."""
