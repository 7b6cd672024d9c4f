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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from dragon.files import write_bytes
from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import TRANSITIONS, Application, Spec, State

_MOVES = ("workers", "away")  # fields that change when the workers of an application change


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to an application.

    Args:
        before, after: the states. `before` is None for the first event; both are equal if only details changed.
        details: what changed: `spec` (first event only), `devices` (replaces those to train on), `curve`, `workers`,
            `placement`, `kind`, `away`, `progress`, `held`, `cost`, `executed`, as in `Application`.
    """

    sequence: int  # its number among all events, from 1
    time: float  # when, in seconds
    application: str  # the name
    before: State | None
    after: State
    reason: str  # the reason, for users
    details: Mapping[str, Any] = field(default_factory=dict)


class _Details(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The details that an event can have, for validation when it is read from a file."""

    spec: Spec | None = None
    devices: dict[str, tuple[int, ...]] | int | None = None
    curve: Curve | None = None
    workers: int | None = None
    placement: dict[str, tuple[int, ...]] | None = None
    kind: str | None = None
    away: dict[str, dict[str, int]] | None = None
    progress: float | None = None
    held: bool | None = None
    cost: float | None = None
    executed: float | None = None


def applied(record: Application | None, event: Event) -> Application:
    """Return the record of an application after an event. Equal records and events give equal results."""
    name = event.application
    try:
        details = msgspec.convert(dict(event.details), _Details)
    except msgspec.ValidationError as error:
        raise ValueError(f"event {event.sequence} of {name!r}: {error}") from None
    if record is None:
        if event.before is not None or event.after is not State.QUEUED or details.spec is None:
            raise ValueError(f"event {event.sequence} of {name!r}: the first event of an application submits it")
        if details.spec.name != name:
            raise ValueError(f"event {event.sequence} of {name!r}: it submits {details.spec.name!r}")
        record = Application(details.spec, since=event.time)
    else:
        if details.spec is not None:
            raise ValueError(f"event {event.sequence}: there is an application {name!r} already")
        if event.before is not record.state:
            raise ValueError(f"event {event.sequence} of {name!r}: it is {record.state}, not {event.before}")
        if event.after is not record.state and event.after not in TRANSITIONS[record.state]:
            allowed = ", ".join(sorted(TRANSITIONS[record.state])) or "no other state"
            raise ValueError(
                f"event {event.sequence} of {name!r}: {record.state} may change to {allowed}, not {event.after}"
            )
    changes: dict[str, Any] = {
        key: value
        for key in ("curve", "workers", "placement", "kind", "away", "progress", "held", "cost", "executed")
        if (value := getattr(details, key)) is not None
    }
    if details.devices is not None:
        changes["spec"] = replace(record.spec, devices=details.devices)
    if event.after is not record.state:
        changes |= _moved_on(record, event.after, event.time)
    if record.holds and any(changes.get(key, getattr(record, key)) != getattr(record, key) for key in _MOVES):
        changes["moved"] = event.time
    after = replace(record, **changes)
    if after.placement:
        after = replace(after, most=max(after.most, after.size))
    return after if after.holds else replace(after, workers=0, placement={}, away={})


def _moved_on(record: Application, after: State, time: float) -> dict[str, Any]:
    """Return the fields that change with the state."""
    held = time - record.since if record.holds else 0.0
    changes: dict[str, Any] = {
        "state": after,
        "since": time,
        "starts": record.starts + (after in (State.STARTING, State.RESUMING)),
        "placed": time if after in (State.STARTING, State.RESUMING) else record.placed,
        "began": time if record.began is None and after is State.STARTING else record.began,
        "executed": record.executed + held,
    }
    if held and record.kind:
        changes["executed_on"] = record.executed_on | {record.kind: record.executed_on.get(record.kind, 0.0) + held}
    return changes


class Records(Mapping[str, Application]):
    """Applications by name, in the order in which they were submitted.

    Args:
        write: called with every event before it takes effect; if it raises, the event does not take effect.
    """

    def __init__(self, write: Callable[[Event], object] = lambda event: None) -> None:
        self._write = write
        self._applications: dict[str, Application] = {}
        self._sequence = 0

    def __getitem__(self, name: str) -> Application:
        return self._applications[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._applications)

    def __len__(self) -> int:
        return len(self._applications)

    def again(self, event: Event) -> None:
        """Apply an event that has been written already. Raises ValueError if it is not the next one."""
        if event.sequence != self._sequence + 1:
            raise ValueError(f"event {event.sequence} follows event {self._sequence}")
        self._applications[event.application] = applied(self._applications.get(event.application), event)
        self._sequence = event.sequence

    def submit(self, spec: Spec, now: float, reason: str = "submitted", curve: Curve | None = None) -> Event:
        """Add an application. Raises ValueError if the name exists."""
        return self._happen(spec.name, None, State.QUEUED, now, reason, {"spec": spec, "curve": curve})

    def change(self, name: str, after: State, now: float, reason: str, **details: object) -> Event:
        """Change the state of an application, or with the same state only its details; see `Event`."""
        return self._happen(name, self._applications[name].state, after, now, reason, details)

    def _happen(
        self, name: str, before: State | None, after: State, now: float, reason: str, details: Mapping[str, object]
    ) -> Event:
        # Converted as it will be read, so that a replay gives the same records.
        plain = msgspec.json.decode(msgspec.json.encode({k: v for k, v in details.items() if v is not None}))
        event = Event(self._sequence + 1, now, name, before, after, reason, plain)
        record = applied(self._applications.get(name), event)
        self._write(event)
        self._applications[name] = record
        self._sequence = event.sequence
        return event


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
