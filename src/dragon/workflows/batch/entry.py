"""The scheduler's record of a task."""

from __future__ import annotations

import enum

from dragon.workflows.batch.call import Access, Call, Kind
from dragon.workflows.batch.outcome import Key, Promise


class State(enum.IntEnum):
    """The state of a task. A cancelled task goes from any state to ENDED."""

    WAITING = 0  # waits for other tasks
    READY = 1  # waits for a slot among the tasks that are sent to the workers
    SENT = 2  # sent to the workers
    ENDED = 3


class Need(enum.IntEnum):
    """Why a task has to wait for another."""

    RESULT = 0
    DATA = 1  # it reads what the other writes
    ORDER = 2  # it writes what the other uses


class Entry(Promise):
    """A task and its dependencies. References that are no longer needed are dropped."""

    __slots__ = ("accesses", "call", "dependents", "ends", "inputs", "kind", "missing", "name", "number", "running",
                 "slot", "state", "timeout", "watchers", "weight")  # fmt: skip

    def __init__(self, key: Key, number: int, call: Call) -> None:
        super().__init__(key)
        self.number = number
        self.call: Call | None = call
        self.kind: Kind = call.kind
        self.name = call.name
        self.timeout = call.timeout
        self.weight = call.weight
        self.state = State.WAITING
        self.missing = 0
        self.slot = -1
        self.inputs: list[Entry] = []
        self.dependents: list[tuple[Entry, Need]] = []
        self.accesses: list[Access] = []
        self.running: tuple[int, int] | None = None  # its process or group, as the worker reports it
        self.watchers: list[int] = []  # the clients to be notified of its end
        self.ends: Promise | None = None  # fulfilled when the cancelled processes have ended

    def __str__(self) -> str:
        return worded_key(self.key, self.name)


def worded_key(key: Key, name: str) -> str:
    """Return the name of a task in messages."""
    uid = f"{key[0]}-{key[1]}"
    return f"task {uid} ({name})" if name and name != uid else f"task {uid}"
