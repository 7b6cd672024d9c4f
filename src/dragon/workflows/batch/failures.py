"""How tasks fail for the sake of others."""

from __future__ import annotations

from typing import Any

from dragon.runtime.serialization import dumps, loads
from dragon.workflows.batch.entry import Entry, Need
from dragon.workflows.batch.errors import BatchError, ReadAfterWriteDependencyError, TaskCancelledError
from dragon.workflows.batch.outcome import Failure, Outcome, worded

__all__ = ["cancellation", "given_up", "inherited", "overdue", "unwritten"]


def unwritten(error: str) -> Failure:
    """The outcome of a task that reads what a task that failed should have written."""
    return Failure.of(ReadAfterWriteDependencyError(f"what the task reads was not written by {error}"))


class _Because:
    """An exception and, as bytes, its cause; unpickled as the exception."""

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
    """The outcome of a task that needs the result of one that failed. It says so under that name however far it is from
    the task that failed first, whose exception is the cause; a task that needs one that was cancelled is cancelled."""
    if isinstance(outcome.error(), (ReadAfterWriteDependencyError, TaskCancelledError)):
        return outcome.noted(f"raised by {before}, whose result is needed")
    error = ReadAfterWriteDependencyError(f"the result of {before} is needed, which failed: {outcome.brief}")
    return Failure(dumps(_Because(error, outcome.data)), worded(error))


def inherited(before: Entry, outcome: Outcome, need: Need) -> Failure | None:
    """How a task fails for the sake of one before it."""
    if not isinstance(outcome, Failure) or need == Need.ORDER:
        return None
    if need == Need.DATA:
        return unwritten(f"{before}: {outcome.brief}")
    return _unmet(before, outcome)


def cancellation(entry: Entry) -> Failure:
    """The outcome of a task that was cancelled."""
    return Failure.of(TaskCancelledError(f"{entry} was cancelled"))


def overdue(entry: Entry) -> Failure:
    """The outcome of a task that ran for too long."""
    return Failure.of(TimeoutError(f"{entry} did not end in {entry.timeout} s"))


def given_up(entry: Entry, why: str) -> Failure:
    """The outcome of a task that cannot be run any more."""
    return Failure.of(BatchError(f"{entry} did not run to its end: {why}"))
