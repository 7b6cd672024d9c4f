"""Decides which of the ready tasks are sent to the workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from dragon.workflows.batch.call import Kind
from dragon.workflows.batch.entry import Entry, State

_AHEAD = 32  # tasks in flight per worker, so that no worker waits for its next task
_LARGE_AHEAD = 2  # the same if their arguments take much memory


class Places:
    """Numbered slots for tasks that are sent, and the tasks that wait for one.

    Jobs run at the same time as long as there are workers for all their ranks, and at most `most_jobs`; one is always
    permitted. `much_memory` returns whether the tasks that were sent and not taken by a worker take much memory.
    """

    def __init__(self, workers: int, most_jobs: int | None, much_memory: Callable[[], bool] = lambda: False) -> None:
        self._workers, self._most_jobs, self._much_memory = workers, most_jobs, much_memory
        self._free = list(range(_AHEAD * workers))
        self._tasks: deque[Entry] = deque()
        self._jobs: deque[Entry] = deque()
        self._running_jobs = self._running_ranks = 0

    def __len__(self) -> int:
        return _AHEAD * self._workers

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
                return self._placed(job)
        while self._free and self._tasks and not self._is_full():
            entry = self._tasks.popleft()
            if entry.state == State.READY:
                return self._placed(entry)
        return None

    def _is_full(self) -> bool:
        under_way = len(self) - len(self._free)
        return under_way >= _LARGE_AHEAD * self._workers and self._much_memory()

    def _is_full_for(self, job: Entry) -> bool:
        if not self._running_jobs:
            return False
        return self._running_ranks + job.weight > self._workers or self._running_jobs == self._most_jobs

    def _placed(self, entry: Entry) -> Entry:
        entry.slot = self._free.pop()
        return entry

    def leave(self, entry: Entry) -> None:
        """Free the slot of a task."""
        self._free.append(entry.slot)
        entry.slot = -1
        if entry.kind == Kind.JOB:
            self._running_jobs -= 1
            self._running_ranks -= entry.weight
