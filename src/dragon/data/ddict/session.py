"""Identifies each write of a thread, so that the primary does a write that is sent twice only once."""

from __future__ import annotations

import os
import threading

__all__ = ["Session", "Write", "own_session"]


class Write:
    """A write whose reply may be requested again while this object exists."""

    def __init__(self, session: Session, number: int) -> None:
        self._session, self._number = session, number
        self.identity = session.identity(number)

    def __del__(self) -> None:
        self._session.end(self._number)


class Session:
    """The writes of one thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._name = os.urandom(8)
        self._last = 0
        self._open: dict[int, None] = {}  # in order

    def begin_write(self) -> Write:
        """Return the next write."""
        self._last += 1
        self._open[self._last] = None
        return Write(self, self._last)

    def end(self, number: int) -> None:
        """Note that the reply to a write is no longer needed."""
        self._open.pop(number, None)

    def identity(self, number: int) -> tuple[bytes, int, int]:
        """Return (session, number of the write, number up to which no reply is needed any more)."""
        return self._name, number, min(next(iter(self._open), number), number) - 1


_local = threading.local()


def own_session() -> Session:
    """Return the session of this thread."""
    session: Session | None = getattr(_local, "session", None)
    if session is None or session.pid != os.getpid():
        session = _local.session = Session()
    return session
