"""The workers of a loader: starts, replaces and dismisses them."""

from __future__ import annotations

import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from dragon.control_groups import MemoryKills
from dragon.infrastructure.errors import NodeLostError
from dragon.native.event import Event
from dragon.native.process import Process
from dragon.native.queue import Queue
from dragon.native.value import Value
from dragon.serialization import import_hint
from dragon.signals import how_ended
from torchloader.loader.assignments import Assignments
from torchloader.loader.making import Maker
from torchloader.loader.members import LoadingError, Member, Tally, compared, started
from torchloader.loader.policy import WorkerPolicy
from torchloader.loader.randomness import mix
from torchloader.loader.snapshot import Snapshots
from torchloader.loader.starts import Starts
from torchloader.loader.tasks import Task
from torchloader.loader.worker import work

__all__ = ["Roster"]

_DEATHS = _FAILED_STARTS = 3


class Roster(ABC):
    """The workers of a loader, on this node or others. resize() may be called in any thread."""

    def __init__(
        self,
        maker: Maker,
        assignments: Assignments[Task],
        size: int,
        policy: WorkerPolicy,
        nodes: Sequence[str | None],
    ) -> None:
        """`nodes` are those that the workers are spread over in turn; None is this node."""
        self._policy, self._nodes = policy, list(nodes)
        self._snapshots = Snapshots(maker, policy, copied=not assignments.is_plain)
        self._lock = threading.RLock()
        self.assignments = assignments
        self._workers: dict[int, Member] = {}
        self._born = self._born_before = self._entropy = 0
        self._live: set[int] = set()  # iterations
        self._failed_starts = 0
        self._memory_kills = MemoryKills()
        self._trouble: BaseException | None = None
        self._to_warn = ""  # of what another thread may have met, in the one that takes batches
        self._starts = Starts(self._snapshots, policy, self._lock)
        self._results: Queue | None = None
        self._floor: Any = None
        self._looked = time.monotonic()
        self._closed = False
        self.tally = Tally()
        self.size = size

    @abstractmethod
    def _hand_out(self) -> None:
        """Send workers the batches that they are to make now."""

    @abstractmethod
    def _receive(self, timeout: float) -> bool:
        """Process the messages of workers."""

    def resize(self, size: int, nodes: Sequence[str | None] | None = None) -> None:
        """Set the number of workers, and the nodes if given. Does not wait: new workers begin when ready, others finish
        their batch."""
        with self._lock:
            self._check_open()
            self.size, self._nodes = size, self._nodes if nodes is None else list(nodes)
            self._reconcile()
            self._hand_out()

    @property
    def ready(self) -> int:
        """The number of workers that take batches now."""
        return self.assignments.workers

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the loader is closed")

    def _take_on(self, worker: Member) -> None:
        """Let a worker take batches from now on."""
        if not worker.takes and not worker.leaving:
            worker.takes = True
            self.assignments.join(worker.number)
        self._hand_out()

    def _reconcile(self, is_first: bool = False) -> None:
        self.assignments.expected = self.size
        if self._results is None:
            if not self.size or not self._live:
                return  # none is started before it is needed
            self._results, self._floor = Queue(0), Value("Q", 0)
        lacking, surplus = compared(self._workers.values(), self._nodes, self.size)
        for worker in surplus:
            self._dismiss(worker)
        if self._closed or not (self._live or self._policy.stays):
            return
        taken = {worker.slot for worker in self._workers.values() if not worker.leaving}
        free = (slot for slot in range(self.size) if slot not in taken)
        for node, slot in zip(lacking, free, strict=False):
            worker = Member(self._born, slot, Queue(0), Event(), node, is_first=is_first)
            self._workers[worker.number] = worker
            self._born += 1
            self._starts.put(worker)
        self._starts.begin(self._start)

    def _start(self, worker: Member) -> None:
        """Start a worker. Runs in the thread of the starts."""
        if self._starts.postpones(worker):
            return
        try:
            first = self._starts.first_of(worker)
            if first is None:
                self._ended(worker, died=False)
                return
            shipment, template = first[0]._replace(seed=self._seed_of(worker)), first[1]
            worker.datasets.add(shipment.dataset)
            worker.tasks.put(shipment)
            assert self._results is not None
            arguments = worker.arguments(self.size, self._policy.nice, self._results, self._floor)
            worker.process = started(work, arguments, template, worker.node)
            with self._lock:
                # Others take batches once they are ready, and a trainer never waits for one that starts.
                if template is not None and worker.is_first and worker.number in self._workers:
                    self._take_on(worker)
        except NodeLostError as error:
            with self._lock:
                self._lost(worker, error)
                self._reconcile()
        except Exception as error:
            if not worker.leaving:  # or nobody needs it any more
                self._trouble = error
            self._ended(worker, died=False)

    def _seed_of(self, worker: Member) -> int:
        """Return the seed of a worker: as in PyTorch that of all workers that start with the iteration plus its slot.
        Those that replace one have others, as they would draw its numbers again."""
        return (mix(self._entropy, worker.number - worker.slot - self._born_before) >> 1) + worker.slot

    def _lost(self, worker: Member, error: NodeLostError) -> None:
        """Move the workers of a lost node to the others; to the trainer's node if none is left."""
        self._nodes = [name for name in self._nodes if name != worker.node]
        if not self._nodes:
            self._nodes, self._to_warn = [None], f"loading workers start on this node now: {error}"
        self._ended(worker, died=False)

    def _begin_anew(self) -> None:
        """Clear the error that ended earlier iterations, and dismiss workers that are not ready."""
        for worker in self._workers.values():
            if not worker.ready:
                self._dismiss(worker)
        self._trouble, self._failed_starts = None, 0

    def _dismiss_all(self) -> None:
        for worker in self._workers.values():
            if not worker.leaving:
                self._dismiss(worker)

    def _dismiss(self, worker: Member) -> None:
        worker.leaving = True
        self.assignments.leave(worker.number)
        worker.leave.set()
        worker.tasks.put(None)
        self._starts.dismiss(worker)

    def _look_after_workers(self) -> None:
        self._looked = time.monotonic()
        with self._lock:
            ended = []
            for worker in list(self._workers.values()):
                try:
                    if worker.process is not None and not worker.process.is_alive:
                        ended.append(worker)
                except NodeLostError as error:
                    self._lost(worker, error)
            if ended:
                self._receive(0)  # what they have sent before
            for worker in ended:
                if worker.number in self._workers:
                    self._ended(worker, died=not worker.leaving)
            self._reconcile()
            self._hand_out()

    def _ended(self, worker: Member, died: bool) -> None:
        with self._lock:
            del self._workers[worker.number]
            # An exit code, and SIGINT for a KeyboardInterrupt, is the dataset's doing, and would come again.
            code = 0 if worker.process is None or not died else worker.process.returncode or 0
            gave_up = died and (code >= 0 or code == -signal.SIGINT)
            key = self.assignments.gone(worker.number, died and worker.ready, 1 if gave_up else _DEATHS)
            if not died or worker.process is None:
                return
            self.tally.died += 1
            how = how_ended(code)
            is_killed = code == -signal.SIGKILL and worker.node is None
            if is_killed and (reason := self._memory_kills.explain()):
                how += f", and {reason}: lower num_workers, prefetch_factor or batch_size"
                self._to_warn = f"a loading worker ended with {how}"
            task = None if key is None else self.assignments.task(key)
            if task is not None and gave_up:
                self._trouble = LoadingError(
                    f"a loading worker exited unexpectedly, with {how}, while it made a batch of {task.samples}: the "
                    "dataset or collate_fn raised SystemExit, KeyboardInterrupt or the like, or called os._exit()"
                )
            elif task is not None:
                self._trouble = LoadingError(
                    f"three loading workers ended over one batch (the last with {how}), of {task.samples}"
                )
            elif not worker.ready:
                self._failed_starts += 1
                if gave_up or self._failed_starts >= _FAILED_STARTS:
                    how += import_hint() if code == 1 and isinstance(worker.process, Process) else ""
                    self._trouble = LoadingError(f"loading workers end at their start, with {how}")
