"""Intervals in the life of a process: what it waited for, and the tasks that it ran."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec


class Span(msgspec.Struct, frozen=True):
    """An operation or a wait of a thread of a process. Times are in seconds since 1970. `what` is get, put, read, join,
    acquire, wait or task; or, of the agent, send and receive: those of the same message have the same `link`, which is
    0 otherwise. `failed` says whether a task raised an exception; in a recording of an earlier version it is None."""

    start: float
    end: float
    pid: int
    thread: int
    what: str
    name: str
    link: int = 0
    failed: bool | None = False


class Task(msgspec.Struct, frozen=True, array_like=True):
    """A task of a pool or a batch that a process has run, or runs: its end is None then. Times are in seconds since
    1970."""

    pid: int
    start: float
    end: float | None
    name: str
    failed: bool


class NodeTasks(msgspec.Struct, frozen=True):
    """Tasks that a node's processes ran in an interval, or run now. `count` is how many the node knows, of which
    `tasks` may be a part. Tasks that ended before `known_since` are not kept any more; it is 0 while all are. `lost`
    tasks or waits were not recorded at all, because there were too many."""

    node: int
    tasks: list[Task]
    count: int
    known_since: float
    lost: int


def failed_or_longest(spans: list[Span], most: int) -> list[Span]:
    """Return at most that many spans of tasks: those that failed, then the longest."""
    if len(spans) <= most or not most:
        return spans[:most]
    ranks = [math.inf if span.failed else span.end - span.start for span in spans]
    least = sorted(ranks)[-most]
    return [span for span, rank in zip(spans, ranks, strict=True) if rank >= least][-most:]


def tasks_of(spans: Iterable[Span]) -> list[Task]:
    """Return the tasks of these spans."""
    return [Task(span.pid, span.start, span.end, span.name, bool(span.failed)) for span in spans]


def task_word(number: int, failed: bool) -> int:
    """Return the number under which the core records a task, given that of its name."""
    return number << 1 | failed


def task_of(word: int) -> tuple[int, bool]:
    """Return the number of a task's name, and whether the task failed."""
    return word >> 1, bool(word & 1)
