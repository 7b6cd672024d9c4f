"""The outcomes of tasks that fail because of others, or are cancelled."""

from __future__ import annotations

from typing import Any

from dragon.runtime.serialization import dumps, loads
from dragon.workflows.batch.entry import Entry, Need
from dragon.workflows.batch.errors import BatchError, ReadAfterWriteDependencyError, TaskCancelledError
from dragon.workflows.batch.outcome import Failure, Outcome, worded


def unwritten(error: str) -> Failure:
    """Return the outcome of a task that reads data that a failed task should have written."""
    return Failure.of(ReadAfterWriteDependencyError(f"the data that the task reads was not written by {error}"))


class _Because:
    """An exception and its pickled cause; unpickled as the exception with its cause."""

    def __init__(self, error: Exception, cause: bytes) -> None:
        self._parts = error, cause

    def __reduce__(self) -> Any:
        return _with_cause, self._parts


def _with_cause(error: Exception, cause: bytes) -> Exception:
    try:
        error.__cause__ = loads(cause) if cause else None
    except Exception as unreadable:
        error.__cause__ = unreadable
    return error


def _unmet(before: Entry, outcome: Failure) -> Failure:
    """Return the outcome of a task that needs the result of a failed one.

    The exception is a ReadAfterWriteDependencyError whose cause is the exception of the task that failed first, however
    far away; a task that needs a cancelled one is cancelled.
    """
    if isinstance(outcome.error(), (ReadAfterWriteDependencyError, TaskCancelledError)):
        return outcome.noted(f"raised by {before}, whose result is needed")
    error = ReadAfterWriteDependencyError(f"the result of {before} is needed, which failed: {outcome.brief}")
    return Failure(dumps(_Because(error, outcome.data)), worded(error))


def inherited(before: Entry, outcome: Outcome, need: Need) -> Failure | None:
    """Return how a task fails because of a task before it; None if it does not."""
    if not isinstance(outcome, Failure) or need == Need.ORDER:
        return None
    if need == Need.DATA:
        return unwritten(f"{before}: {outcome.brief}")
    return _unmet(before, outcome)


def cancellation(entry: Entry) -> Failure:
    """Return the outcome of a cancelled task."""
    return Failure.of(TaskCancelledError(f"{entry} was cancelled"))


def overdue(entry: Entry) -> Failure:
    """Return the outcome of a task that exceeded its timeout."""
    return Failure.of(TimeoutError(f"{entry} did not end in {entry.timeout} s"))


def given_up(entry: Entry, why: str) -> Failure:
    """Return the outcome of a task that cannot be run any more."""
    return Failure.of(BatchError(f"{entry} did not run to its end: {why}"))
