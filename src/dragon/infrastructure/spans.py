"""An interval in the trace of a run."""

from __future__ import annotations

import msgspec

__all__ = ["Span"]


class Span(msgspec.Struct, frozen=True):
    """An operation or a wait of a thread of a process. Times are in seconds since 1970.

    `what` is get, put, read, join, acquire, wait or task; or, of the agent, send and receive: those of the same message
    have the same `link`, which is 0 otherwise.
    """

    start: float
    end: float
    pid: int
    thread: int
    what: str
    name: str
    link: int = 0
