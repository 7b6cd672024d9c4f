"""The states of an application and the permitted transitions."""

from __future__ import annotations

import enum


class State(enum.StrEnum):
    """The state of an application."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    RESIZING = "resizing"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESUMING = "resuming"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


ENDED = frozenset({State.FINISHED, State.FAILED, State.CANCELLED})

_ALIVE = {State.FINISHED, State.FAILED, State.CANCELLED}

TRANSITIONS: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.STARTING, State.FAILED, State.CANCELLED}),
    State.STARTING: frozenset({State.RUNNING, State.PAUSING, State.QUEUED, *_ALIVE}),
    State.RUNNING: frozenset({State.RESIZING, State.PAUSING, State.QUEUED, *_ALIVE}),
    State.RESIZING: frozenset({State.RUNNING, State.PAUSING, State.QUEUED, *_ALIVE}),
    State.PAUSING: frozenset({State.PAUSED, State.QUEUED, *_ALIVE}),
    State.PAUSED: frozenset({State.RESUMING, State.FAILED, State.CANCELLED}),
    State.RESUMING: frozenset({State.RUNNING, State.PAUSING, State.QUEUED, *_ALIVE}),
    State.FINISHED: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
}
