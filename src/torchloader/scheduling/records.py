"""The records of all applications, and how events change them.

Records change only by events, which are written before they take effect. Applying the same events again gives the same
records: a restarted master recovers its state in this way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import TRANSITIONS, Application, Spec, State

_MOVES = ("workers", "away")  # fields that change when the workers of an application change


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to an application.

    Args:
        sequence: its number among all events, from 1.
        time: when, in seconds.
        application: the name.
        before, after: the states. `before` is None for the first event; both are equal if only details changed.
        reason: the reason, for users.
        details: what changed: `spec` (first event only), `devices` (replaces those to train on), `curve`, `workers`,
            `placement`, `kind`, `away`, `progress`, `held`, `cost`, `executed`, as in `Application`.
    """

    sequence: int
    time: float
    application: str
    before: State | None
    after: State
    reason: str
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
