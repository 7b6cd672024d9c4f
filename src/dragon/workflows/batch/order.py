"""What the scheduler of a batch decides of a task: whether it is ready, where it runs, and why it cannot.

Of the same data, a reader waits for the last writer, a writer for the last writer and for all readers since.
"""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator

from dragon.runtime.serialization import dumps, loads
from dragon.workflows.batch.call import Access, Call, Kind
from dragon.workflows.batch.conditions import MOST_LOSSES, Share
from dragon.workflows.batch.errors import BatchError, ReadAfterWriteDependencyError, TaskCancelledError
from dragon.workflows.batch.outcome import Failure, Key, Outcome, Promise, worded


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

    __slots__ = (
        "accesses",
        "call",
        "demand",
        "dependents",
        "ends",
        "failed_on",
        "faults",
        "inputs",
        "kind",
        "losses",
        "missing",
        "name",
        "node",
        "number",
        "place",
        "restored",
        "running",
        "shares",
        "slot",
        "state",
        "submitted",
        "timeout",
        "watchers",
        "weight",
    )  # fmt: skip

    def __init__(self, key: Key, number: int, call: Call) -> None:
        super().__init__(key)
        self.number = number
        self.call: Call | None = call
        self.kind: Kind = call.kind
        self.name = call.name
        self.timeout = call.timeout
        self.weight = call.weight
        self.demand = call.demand
        self.state = State.WAITING
        self.missing = 0
        self.slot = -1
        self.node = -1  # where it runs, in a batch whose tasks ask for resources
        self.shares: list[Share] = []  # what it has there
        self.inputs: list[Entry] = []
        self.dependents: list[tuple[Entry, Need]] = []
        self.accesses: list[Access] = []
        self.running: tuple[int, int] | None = None  # its process or group, as the worker reports it
        self.watchers: list[int] = []  # the clients to be notified of its end
        self.ends: Promise | None = None  # fulfilled when the cancelled processes have ended
        self.faults: list[str] = []  # how earlier tries ended
        self.failed_on: tuple[int, ...] = ()  # the nodes of those tries
        self.losses = 0  # how many of them by the loss of their worker
        self.submitted = time.time()
        # The node and the pid of the worker that ended the last try, and the seconds that it took, if that is known.
        self.place: tuple[str, int | None, float] | None = None
        self.restored = False  # whether its result is that of an earlier run

    def left(self, call: Call, outcome: Outcome) -> Entry:
        """Return what is left of a try whose processes have yet to end, when the task itself is tried again."""
        rest = Entry(self.key, self.number, call)
        rest.state, rest.slot, rest.running, rest.outcome = State.SENT, self.slot, self.running, outcome
        rest.node, rest.shares = self.node, self.shares
        self.node, self.shares = -1, []
        return rest

    def pause_before_retry(self, outcome: Outcome, lost: bool) -> float | None:
        """Return the seconds after which a task with this outcome is tried again; None if the outcome is final. `lost`:
        its worker was, or its node."""
        retry = self.call.retry if self.call is not None else None
        if retry is None:
            return None
        if lost and isinstance(outcome, Failure):
            if self.losses == MOST_LOSSES:
                return None
            self.losses += 1
            self.faults.append(outcome.brief)
            return retry.pause(self.losses)
        fault = retry.fault(outcome, self.kind != Kind.FUNCTION)
        if not fault or len(self.faults) - self.losses >= retry.retries:
            return None
        self.faults.append(fault)
        return retry.pause(len(self.faults) - self.losses)

    def __str__(self) -> str:
        return worded_key(self.key, self.name)


def uid_of(key: Key) -> str:
    """Return the uid of a task, as users know it."""
    return f"{key[0]}-{key[1]}"


def worded_key(key: Key, name: str) -> str:
    """Return the name of a task in messages."""
    uid = uid_of(key)
    return f"task {uid} ({name})" if name and name != uid else f"task {uid}"


def unwritten(error: str) -> Failure:
    """Return the outcome of a task that reads data that a failed task should have written."""
    return Failure.of(ReadAfterWriteDependencyError(f"the data that the task reads was not written by {error}"))


class _Because:
    """An exception and its pickled cause; unpickled as the exception with its cause."""

    def __init__(self, error: Exception, cause: bytes) -> None:
        self._parts = error, cause

    def __reduce__(self) -> tuple[object, ...]:
        return _with_cause, self._parts


def _with_cause(error: Exception, cause: bytes) -> Exception:
    try:
        error.__cause__ = loads(cause) if cause else None
    except Exception as unreadable:
        error.__cause__ = unreadable
    return error


def _unmet(before: Entry, outcome: Failure) -> Failure:
    """Return the outcome of a task that needs the result of a failed one. The exception is a
    ReadAfterWriteDependencyError whose cause is the exception of the task that failed first, however far away; a task
    that needs a cancelled one is cancelled."""
    if isinstance(outcome.error(), (ReadAfterWriteDependencyError, TaskCancelledError)):
        return outcome.noted(f"raised by {before}, whose result is needed")
    error = ReadAfterWriteDependencyError(f"the result of {before} is needed, which failed: {outcome.brief}")
    return Failure(dumps(_Because(error, outcome.data)), worded(error))


def inherited(before: Entry, outcome: Outcome, need: Need) -> Failure | None:
    """Return how a task fails because of a task before it; None if it does not."""
    if not isinstance(outcome, Failure) or need == Need.ORDER:
        return None
    if need == Need.DATA:
        return unwritten(f"{before}: {outcome.brief}")
    return _unmet(before, outcome)


def cancellation(entry: Entry) -> Failure:
    """Return the outcome of a cancelled task."""
    return Failure.of(TaskCancelledError(f"{entry} was cancelled"))


def overdue(entry: Entry) -> Failure:
    """Return the outcome of a task that exceeded its timeout."""
    return Failure.of(TimeoutError(f"{entry} did not end in {entry.timeout} s"))


def given_up(entry: Entry, why: str) -> Failure:
    """Return the outcome of a task that cannot be run any more."""
    return Failure.of(BatchError(f"{entry} did not run to its end: {why}"))


_AHEAD = 32  # tasks in flight per worker, so that no worker waits for its next task
_LARGE_AHEAD = 2  # the same if their arguments take much memory


class Places:
    """Numbered slots for tasks that are sent, and the tasks that wait for one.

    Jobs run at the same time as long as there are workers for all their ranks, and at most `most_jobs`; one is always
    permitted. `much_memory` returns whether the tasks that were sent and not taken by a worker take much memory.
    """

    def __init__(self, workers: int, most_jobs: int | None, much_memory: Callable[[], bool] = lambda: False) -> None:
        self._workers, self.most_jobs, self._much_memory = workers, most_jobs, much_memory
        self._free = list(range(_AHEAD * workers))
        self._tasks: deque[Entry] = deque()
        self._jobs: deque[Entry] = deque()
        self._running_jobs = self._running_ranks = 0

    def free_slots(self) -> list[int]:
        """Return the slots that no task has."""
        return self._free

    def wait(self, entry: Entry) -> None:
        """Add a task that waits for a slot."""
        (self._jobs if entry.kind == Kind.JOB else self._tasks).append(entry)

    def next(self) -> Entry | None:
        """Return a task that gets a slot now; None if none waits, or none can get one. Ended tasks are skipped."""
        while self._free and self._jobs:
            job = self._jobs[0]
            if job.state == State.READY and self._is_full_for(job):
                break
            self._jobs.popleft()
            if job.state == State.READY:
                self._running_jobs += 1
                self._running_ranks += job.weight
                job.slot = self._free.pop()
                return job
        while self._free and self._tasks and not self._is_full():
            entry = self._tasks.popleft()
            if entry.state == State.READY:
                entry.slot = self._free.pop()
                return entry
        return None

    def _is_full(self) -> bool:
        under_way = _AHEAD * self._workers - len(self._free)
        return under_way >= _LARGE_AHEAD * self._workers and self._much_memory()

    def _is_full_for(self, job: Entry) -> bool:
        if not self._running_jobs:
            return False
        return self._running_ranks + job.weight > self._workers or self._running_jobs == self.most_jobs

    def refusal(self, entry: Entry) -> str:
        """Return why a task can never run; always empty here."""
        return ""

    def lacking(self, entry: Entry) -> str:
        """Return what a task waits for that is ready."""
        waiting = self._jobs if entry.kind == Kind.JOB else self._tasks
        return f"its turn, after {waiting.index(entry) if entry in waiting else 0} others"

    def leave(self, entry: Entry) -> None:
        """Free the slot of a task."""
        self._free.append(entry.slot)
        entry.slot = -1
        if entry.kind == Kind.JOB:
            self._running_jobs -= 1
            self._running_ranks -= entry.weight


class _Part:
    """The users of one part of an object: its last writer, the error if that failed, and the readers since."""

    __slots__ = ("error", "readers", "writer")

    def __init__(self) -> None:
        self.writer: Entry | None = None
        self.error = ""
        self.readers: list[Entry] = []

    @property
    def is_unused(self) -> bool:
        return self.writer is None and not self.error and not self.readers


_WHOLE: Hashable = ("the whole object",)


class Accesses:
    """The accesses of tasks that have not ended, and of writers that failed."""

    def __init__(self) -> None:
        self._objects: dict[Hashable, dict[Hashable, _Part]] = {}

    def add(self, entry: Entry, accesses: list[Access]) -> Iterator[tuple[Entry | str, bool]]:
        """Add the accesses of a task. Yields its dependencies: (a task, or the error of a failed one; whether the new
        task reads its data)."""
        entry.accesses = accesses
        for one in accesses:
            parts = self._objects.setdefault(one.obj, {})
            for part in self._touched(parts, one):
                if part.writer is not None and part.writer is not entry:
                    yield part.writer, not one.writes
                elif part.error and not one.writes:
                    yield part.error, True
                if one.writes:
                    yield from ((reader, False) for reader in part.readers if reader is not entry)
            for name in one.parts or (_WHOLE,):
                own = parts.setdefault(name, _Part())
                if one.writes:
                    own.writer, own.error, own.readers = entry, "", []
                else:
                    own.readers.append(entry)

    @staticmethod
    def _touched(parts: dict[Hashable, _Part], one: Access) -> list[_Part]:
        if not one.parts:
            return list(parts.values())
        return [parts[name] for name in (*one.parts, _WHOLE) if name in parts]

    def ended(self, entry: Entry, error: str) -> None:
        """Remove the accesses of a task that has ended; `error` says how if it failed, else ""."""
        for one in entry.accesses:
            parts = self._objects.get(one.obj, {})
            for name in one.parts or (_WHOLE,):
                part = parts.get(name)
                if part is None:
                    continue
                if part.writer is entry:
                    part.writer, part.error = None, error
                part.readers = [reader for reader in part.readers if reader is not entry]
                if part.is_unused:
                    del parts[name]
            if not parts:
                self._objects.pop(one.obj, None)
        entry.accesses = []
