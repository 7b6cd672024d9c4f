"""How tasks fail for the sake of others."""

from __future__ import annotations

from dragon.workflows.batch.entry import Entry, Need
from dragon.workflows.batch.errors import BatchError, ReadAfterWriteDependencyError, TaskCancelledError
from dragon.workflows.batch.outcome import Failure, Outcome

__all__ = ["cancellation", "given_up", "inherited", "overdue", "unwritten"]


def unwritten(error: str) -> Failure:
    """The outcome of a task that reads what a task that failed should have written."""
    return Failure.of(ReadAfterWriteDependencyError(f"what the task reads was not written by {error}"))


def inherited(before: Entry, outcome: Outcome, need: Need) -> Failure | None:
    """How a task fails for the sake of one before it."""
    if not isinstance(outcome, Failure) or need == Need.ORDER:
        return None
    if need == Need.DATA:
        return unwritten(f"{before}: {outcome.brief}")
    return outcome.noted(f"raised by {before}, whose result is needed")


def cancellation(entry: Entry) -> Failure:
    """The outcome of a task that was cancelled."""
    return Failure.of(TaskCancelledError(f"{entry} was cancelled"))


def overdue(entry: Entry) -> Failure:
    """The outcome of a task that ran for too long."""
    return Failure.of(TimeoutError(f"{entry} did not end in {entry.timeout} s"))


def given_up(entry: Entry, why: str) -> Failure:
    """The outcome of a task that cannot be run any more."""
    return Failure.of(BatchError(f"{entry} did not run to its end: {why}"))
