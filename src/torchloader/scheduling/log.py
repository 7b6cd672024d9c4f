"""The event log: a line of JSON for every event of an application, never changed once it is written.

    {"sequence": 2, "time": 3.5, "application": "a", "from": "queued", "to": "starting", "reason": "arrival",
     "details": {"workers": 4, "placement": {"node0": [0, 1]}}}

A line is on the disk before its event takes effect. A crash can leave the last line incomplete; its event was not in
effect, and the line is dropped.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Self

import msgspec

from dragon.files import append_bytes, write_bytes
from dragon.infrastructure.errors import DragonError
from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import TRANSITIONS, Application, Spec, State


class Details(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """What an event changes of an `Application`."""

    spec: Spec | None = None  # of the first event only
    devices: dict[str, tuple[int, ...]] | int | None = None  # replaces those to train on
    curve: Curve | None = None
    workers: int | None = None
    placement: dict[str, tuple[int, ...]] | None = None
    kind: str | None = None
    away: dict[str, dict[str, int]] | None = None
    progress: float | None = None
    held: bool | None = None
    cost: float | None = None
    executed: float | None = None


_FIELDS = [name for name in Details.__struct_fields__ if name not in ("spec", "devices")]


class Event(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"before": "from", "after": "to"}):
    """Something that happened to an application."""

    sequence: int  # its number among all events, from 1
    time: float  # in seconds
    application: str
    before: State | None  # None for the first event
    after: State  # the same as `before` if only details changed
    reason: str  # for users
    details: Details


def applied(record: Application | None, event: Event) -> Application:
    """Return the record of an application after an event. Equal records and events give equal results."""
    name, details = event.application, event.details
    where = f"event {event.sequence} of {name!r}"
    if record is None:
        if event.before is not None or event.after is not State.QUEUED or details.spec is None:
            raise ValueError(f"{where}: the first event of an application submits it")
        if details.spec.name != name:
            raise ValueError(f"{where}: it submits {details.spec.name!r}")
        record = Application(details.spec, since=event.time)
    else:
        if details.spec is not None:
            raise ValueError(f"event {event.sequence}: there is an application {name!r} already")
        if event.before is not record.state:
            raise ValueError(f"{where}: it is {record.state}, not {event.before}")
        if event.after is not record.state and event.after not in TRANSITIONS[record.state]:
            allowed = ", ".join(sorted(TRANSITIONS[record.state])) or "no other state"
            raise ValueError(f"{where}: {record.state} may change to {allowed}, not {event.after}")
    changes: dict[str, object] = {key: value for key in _FIELDS if (value := getattr(details, key)) is not None}
    if details.devices is not None:
        changes["spec"] = replace(record.spec, devices=details.devices)
    if event.after is not record.state:
        changes |= _state_changes(record, event.after, event.time)
    workers = record.workers, record.away
    if record.holds and (changes.get("workers", workers[0]), changes.get("away", workers[1])) != workers:
        changes["moved"] = event.time
    after: Application = replace(record, **changes)  # type: ignore[arg-type]
    if after.placement:
        after = replace(after, most=max(after.most, after.size))
    return after if after.holds else replace(after, workers=0, placement={}, away={})


def _state_changes(record: Application, after: State, time: float) -> dict[str, object]:
    held = time - record.since if record.holds else 0.0
    starts = after in (State.STARTING, State.RESUMING)
    changes: dict[str, object] = {"state": after, "since": time, "executed": record.executed + held}
    if starts:
        changes |= {"starts": record.starts + 1, "placed": time}
    if record.began is None and after is State.STARTING:
        changes["began"] = time
    if held and record.kind:
        changes["executed_on"] = record.executed_on | {record.kind: record.executed_on.get(record.kind, 0.0) + held}
    return changes


class Records(Mapping[str, Application]):
    """Applications by name, in the order in which they were submitted. `write` is called with every event before it
    takes effect; if it raises, the event does not take effect."""

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
        """Change the state of an application, or with the same state only its details; see `Details`."""
        return self._happen(name, self._applications[name].state, after, now, reason, details)

    def _happen(
        self, name: str, before: State | None, after: State, now: float, reason: str, details: Mapping[str, object]
    ) -> Event:
        # Converted as it will be read, so that a replay gives the same records.
        plain = msgspec.json.encode({key: value for key, value in details.items() if value is not None})
        changed = msgspec.json.decode(plain, type=Details)
        event = Event(self._sequence + 1, now, name, before, after, reason, changed)
        record = applied(self._applications.get(name), event)
        self._write(event)
        self._applications[name] = record
        self._sequence = event.sequence
        return event


_log = logging.getLogger("torchloader")


class LogError(DragonError, ValueError):
    """Raised for an invalid line of an event log; says which and why."""


class FullError(OSError):
    """Raised if an event cannot be written; then it did not take effect."""


def encoded(event: Event) -> bytes:
    return msgspec.json.encode(event) + b"\n"


def _scan(path: Path, content: bytes, records: Records) -> tuple[list[Event], int]:
    """Return the events of a log, which are applied to `records`, and the number of bytes in complete lines."""
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        _log.warning("%s: the last line is incomplete, its event was never in effect; the line is dropped", path)
    events = []
    for number, line in enumerate(content[:whole].splitlines(), 1):
        try:
            events.append(msgspec.json.decode(line, type=Event))
            records.again(events[-1])
        except (ValueError, msgspec.DecodeError) as error:
            raise LogError(
                f"{path}, line {number}: {error}; the log was modified, or written by several masters. Restore it, or "
                "use another folder"
            ) from None
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
    write_bytes(Path(path), b"".join(map(encoded, events)))


class EventLog:
    """An open event log, and the records that result from it, as a context manager. A file that does not exist is
    created; an existing one is replayed, and an incomplete last line removed."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        new = not self._path.exists()
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                reason = "another master has this event log open; give each its own"
                raise BlockingIOError(error.errno, reason, str(path)) from None
            self.records = Records(self._append)
            content = self._path.read_bytes()
            _, self._size = _scan(self._path, content, self.records)
            if self._size < len(content):
                os.ftruncate(self._file, self._size)
            os.fsync(self._file)
            if new:
                sync_folder(self._path.parent)
        except BaseException:
            os.close(self._file)
            raise

    def _append(self, event: Event) -> None:
        line = encoded(event)
        try:
            append_bytes(self._file, line, self._path)
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def sync_folder(folder: Path) -> None:
    """Have the names of new files in a folder survive a crash of the machine."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
