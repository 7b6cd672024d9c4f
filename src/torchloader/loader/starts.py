"""Starts workers in a separate thread, so that a trainer never waits for a start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from weakref import WeakMethod

from torchloader.loader.forks import Template
from torchloader.loader.members import Member, start_each
from torchloader.loader.policy import WorkerPolicy
from torchloader.loader.snapshot import AnySnapshot, Snapshots
from torchloader.loader.worker import Shipment

__all__ = ["Starts"]


class Starts:
    """The workers that are waiting to be started. `lock` is that of the snapshots.

    Where workers are forked and there is no template yet, they wait until the trainer calls resume(): forking in this
    thread would copy other threads in the middle of an operation.
    """

    def __init__(self, snapshots: Snapshots, policy: WorkerPolicy, lock: threading.RLock) -> None:
        self._snapshots, self._policy, self._lock = snapshots, policy, lock
        self._queue: SimpleQueue[Member | None] = SimpleQueue()
        self._postponed: list[Member] = []
        self._thread: threading.Thread | None = None

    def put(self, worker: Member) -> None:
        """Add a worker that is to be started."""
        self._queue.put(worker)

    def begin(self, start: Callable[[Member], None]) -> None:
        """Start the thread, which calls `start` for each worker."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=start_each, args=(self._queue, WeakMethod(start)), name="loading workers", daemon=True
            )
            self._thread.start()

    def end(self) -> None:
        """Start no more workers."""
        self._queue.put(None)

    @property
    def wait_for_fork(self) -> bool:
        """Whether workers are waiting until the trainer forks a template."""
        return bool(self._postponed)

    def resume(self, snapshot: AnySnapshot | None) -> None:
        """Start the postponed workers if `snapshot` is not None, that is, if the trainer has forked a template."""
        with self._lock:
            if snapshot is not None:
                self._snapshots.keep(snapshot)
                postponed, self._postponed = self._postponed, []
                for worker in postponed:
                    self._queue.put(worker)

    def dismiss(self, worker: Member) -> None:
        """Remove a leaving worker from those that wait for the trainer."""
        if worker in self._postponed:
            self._postponed.remove(worker)
            self._queue.put(worker)

    def postpones(self, worker: Member) -> bool:
        """Postpone a worker if it has to wait until the trainer forks a template. Returns whether it was postponed."""
        with self._lock:
            postpones = self._policy.forks and self._snapshots.lacking and not worker.leaving
            if postpones:
                self._postponed.append(worker)
            return postpones

    def first_of(self, worker: Member) -> tuple[Shipment, Template | None] | None:
        """Return a worker's first message and its template (None for a new process); None if the worker is leaving."""
        with self._lock:
            lacking = self._snapshots.lacking and not self._policy.forks
        snapshot = self._snapshots.take() if lacking and not worker.leaving else None
        with self._lock:
            if snapshot is not None:
                self._snapshots.keep(snapshot)
            if worker.leaving:
                return None
            latest, needed = self._snapshots.latest, self._snapshots.numbers
            kept, template = self._snapshots[latest], self._snapshots.template_of(latest)
        # Without the lock, which a trainer needs to take batches.
        return Shipment(latest, needed, self._snapshots.content(latest, kept, needed, worker.node), 0), template
