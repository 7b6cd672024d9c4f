"""Which of the tasks that could run are sent to the workers."""

from __future__ import annotations

from collections import deque

from dragon.workflows.batch.call import Kind
from dragon.workflows.batch.entry import Entry, State

__all__ = ["Places"]

_AHEAD = 32  # tasks that are sent for each worker, so that none waits for the next


class Places:
    """Numbered places for tasks that are sent, and the tasks that wait for one.

    Jobs run side by side as far as there are workers for all their ranks, and `most_jobs` allows it; one always may.
    """

    def __init__(self, workers: int, most_jobs: int | None) -> None:
        self._workers, self._most_jobs = workers, most_jobs
        self._free = list(range(_AHEAD * workers))
        self._tasks: deque[Entry] = deque()
        self._jobs: deque[Entry] = deque()
        self._running_jobs = self._running_ranks = 0

    def __len__(self) -> int:
        return _AHEAD * self._workers

    def wait(self, entry: Entry) -> None:
        """Have a task wait for a place."""
        (self._jobs if entry.kind == Kind.JOB else self._tasks).append(entry)

    def next(self) -> Entry | None:
        """A task that has a place now; None: nobody waits, or has to go on waiting. Ended ones wait no more."""
        while self._free and self._jobs:
            job = self._jobs[0]
            if job.state == State.READY and self._is_full_for(job):
                break
            self._jobs.popleft()
            if job.state == State.READY:
                self._running_jobs += 1
                self._running_ranks += job.weight
                return self._placed(job)
        while self._free and self._tasks:
            entry = self._tasks.popleft()
            if entry.state == State.READY:
                return self._placed(entry)
        return None

    def _is_full_for(self, job: Entry) -> bool:
        if not self._running_jobs:
            return False
        return self._running_ranks + job.weight > self._workers or self._running_jobs == self._most_jobs

    def _placed(self, entry: Entry) -> Entry:
        entry.slot = self._free.pop()
        return entry

    def leave(self, entry: Entry) -> None:
        """The place of a task is free again."""
        self._free.append(entry.slot)
        entry.slot = -1
        if entry.kind == Kind.JOB:
            self._running_jobs -= 1
            self._running_ranks -= entry.weight
