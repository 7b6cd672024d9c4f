"""The event log: a line of JSON for every event of an application, never changed once it is written.

    {"sequence": 2, "time": 3.5, "application": "a", "from": "queued", "to": "starting", "reason": "arrival",
     "details": {"workers": 4, "placement": {"node0": [0, 1]}}}

A line is on the disk before its event takes effect. A crash can leave the last line incomplete; its event was not in
effect, and the line is dropped.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from dragon.files import write_bytes
from torchloader.scheduling.application import State
from torchloader.scheduling.records import Event, Records

_log = logging.getLogger("torchloader")


class LogError(ValueError):
    """Raised for an invalid line of an event log; says which and why."""


class FullError(OSError):
    """Raised if an event cannot be written; then it did not take effect."""


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    sequence: int
    time: float
    application: str
    before: State | None = msgspec.field(name="from")
    after: State = msgspec.field(name="to")
    reason: str
    details: dict[str, Any]


def encoded(event: Event) -> bytes:
    """Return the line of an event, including its newline."""
    line = _Line(
        event.sequence,
        event.time,
        event.application,
        event.before,
        event.after,
        event.reason,
        dict(event.details),
    )
    return msgspec.json.encode(line) + b"\n"


def _scan(path: Path, content: bytes, records: Records) -> tuple[list[Event], int]:
    """Return the events of a log, which are applied to `records`, and the number of bytes in complete lines."""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        _log.warning("%s: the last line is incomplete, its event was never in effect; the line is dropped", path)
    events = []
    for number, text in enumerate(content[:whole].splitlines(), 1):
        try:
            line = msgspec.json.decode(text, type=_Line)
            event = Event(
                line.sequence, line.time, line.application, line.before, line.after, line.reason, line.details
            )
            records.again(event)
        except (ValueError, msgspec.DecodeError) as error:
            raise LogError(
                f"{path}, line {number}: {error}; the log was modified, or written by several masters. Restore it, or "
                "use another folder"
            ) from None
        events.append(event)
    return events, whole


def read(path: str | os.PathLike[str]) -> list[Event]:
    """Return the events of a log. Raises LogError for an invalid line, OSError if the file cannot be read."""
    return _scan(Path(path), Path(path).read_bytes(), Records())[0]


def replay(path: str | os.PathLike[str]) -> Records:
    """Return the records that result from a log. Raises as `read` does."""
    records = Records()
    _scan(Path(path), Path(path).read_bytes(), records)
    return records


def write(path: str | os.PathLike[str], events: Iterable[Event]) -> None:
    """Write a new log of past events."""
    write_bytes(Path(path), b"".join(map(encoded, events)))


class EventLog:
    """An open event log, and the records that result from it. Use it as a context manager.

    Args:
        path: the file. It is created if it does not exist; an existing one is replayed, and an incomplete last line
            removed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        new = not self._path.exists()
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BlockingIOError(
                    error.errno, "another master has this event log open; give each its own", str(path)
                ) from None
            self.records = Records(self._append)
            content = self._path.read_bytes()
            _, self._size = _scan(self._path, content, self.records)
            if self._size < len(content):
                os.ftruncate(self._file, self._size)
            os.fsync(self._file)
            if new:
                self._sync_folder()
        except BaseException:
            os.close(self._file)
            raise

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _append(self, event: Event) -> None:
        line = encoded(event)
        try:
            written = os.write(self._file, line)
            if written < len(line):
                raise OSError(errno.ENOSPC, f"only {written} of {len(line)} bytes of an event could be written")
            os.fsync(self._file)
        except OSError as error:
            # The event did not take effect, so it must not be replayed, nor precede the next event.
            os.ftruncate(self._file, self._size)
            raise FullError(f"{self._path} cannot be written: {error.strerror}") from error
        self._size += len(line)

    def close(self) -> None:
        """Close the file. The records can still be read."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
