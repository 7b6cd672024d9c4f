"""The workers of a loader and the batches that they make, by iteration."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Sequence

from torchloader.loader.assignments import Assignments, Key
from torchloader.loader.exchange import Keeper
from torchloader.loader.here import Here
from torchloader.loader.making import Maker
from torchloader.loader.members import LoadingError, Member, heard
from torchloader.loader.order import Indices
from torchloader.loader.outcome import Outcome, unpack
from torchloader.loader.policy import WorkerPolicy
from torchloader.loader.roster import Roster
from torchloader.loader.stream_assignments import HERE, StreamAssignments
from torchloader.loader.streams import Place, Share, StreamBatch
from torchloader.loader.tasks import Task
from torchloader.loader.worker import Made, Ready, Release, Shipment

__all__ = ["Crew", "LoadingError"]

_LOOK_AFTER_WORKERS_S = 0.01, 0.1  # seconds without a batch: the first time, and at most
_SLOW_S = 1.0  # seconds between two checks of the workers while batches arrive


class Crew(Roster):
    """The workers of a loader, the iterations that they serve, and the batches that they have made.

    The batches of one iteration must be taken by one thread at a time.
    """

    def __init__(
        self,
        maker: Maker,
        assignments: Assignments[Task],
        size: int,
        timeout: float,
        policy: WorkerPolicy,
        nodes: Sequence[str | None] = (None,),
    ) -> None:
        """`nodes` are those that the workers are spread over in turn; None is this node."""
        super().__init__(maker, assignments, size, policy, nodes)
        self.timeout = timeout
        self._iterations = 0
        self._made: dict[Key, Outcome] = {}
        self._taker: int | None = None
        self._keeper = Keeper()
        self._here = Here(maker, self._snapshots, self.tally)

    # ---- iterations

    def open(self, entropy: int) -> int:
        """Begin an iteration, and return its number. Its workers use the dataset as it is now, and the seeds of their
        worker_init_fn depend on `entropy`."""
        return self._open(False, entropy)

    def open_streams(self, place: Place, shares: list[Share]) -> int:
        """Begin an iteration over streams at a place, and return its number.

        Without workers, a single stream with no share (0 streams) is read by the trainer to the end.
        """
        is_plain = not self.size and len(shares) == 1 and not shares[0].streams
        iteration = self._open(not is_plain)
        assert isinstance(self.assignments, StreamAssignments)
        with self._lock:
            self.assignments.begin(iteration, place.progress, shares, is_plain)
        if is_plain:
            self._here.keep_streams(iteration)
        return iteration

    def _open(self, with_snapshot: bool, entropy: int = 0) -> int:
        while True:
            self._check_open()
            snapshot = self._snapshots.take() if self.size or with_snapshot else None
            with self._lock:
                if self.size and snapshot is None:
                    continue  # they have become more meanwhile
                if self._trouble is not None and not self._live:
                    self._begin_anew()
                begins_anew = not self._policy.stays and (self._policy.forks or not self._live)
                if begins_anew or self._snapshots.is_foreign(snapshot):
                    self._dismiss_all()
                self._iterations += 1
                self._entropy, self._born_before = entropy, self._born
                self._live.add(self._iterations)
                self._snapshots.begin(self._iterations, snapshot)
                self._reconcile(is_first=True)
                self._starts.resume(snapshot)
                return self._iterations

    def finish(self, iteration: int) -> None:
        """End an iteration: release its batches and its snapshot."""
        with self._lock:
            self._live.discard(iteration)
            self._snapshots.finish(iteration)
            self.assignments.drop(iteration)
            self._here.forget(iteration)
            if not self._live and self._policy.forks and not self._policy.stays:
                self._dismiss_all()
                self._snapshots.leave_templates()
            for key in [key for key in self._made if key[0] == iteration]:
                del self._made[key]
            if self._floor is not None:
                self._floor.value = min(self._live, default=self._iterations + 1)

    @property
    def begun(self) -> int:
        """The number of iterations that have begun so far."""
        return self._iterations

    @property
    def window(self) -> int:
        """The number of batches that may be requested before the first of them is taken."""
        return self.assignments.window(self.size)

    @property
    def depth(self) -> int:
        """The number of batches that are made and not taken.

        In a thread other than the taking one, all pending messages of workers count: receiving them here would make the
        other thread wait for them.
        """
        if self._taker in (None, threading.get_ident()) and not self._closed:
            self._receive(0)
            return len(self._made)
        return len(self._made) + (0 if self._results is None else self._results.size())

    # ---- batches

    def want(self, iteration: int, number: int, epoch: int, indices: Indices | StreamBatch) -> None:
        """Request a batch."""
        with self._lock:
            self._check_live(iteration)
            self.assignments.want((iteration, number), Task(iteration, number, epoch, indices))
            self._hand_out()

    def take(self, iteration: int, numbers: list[int], alone: bool) -> tuple[int, Outcome, float]:
        """Return the first of these batches that is made: its number, its outcome, and the seconds in which none was
        ready.

        Without workers the first batch is made in the trainer; with `alone`, also while workers are starting. Raises
        LoadingError, TimeoutError after the loader's timeout, and ValueError if the loader is closed.
        """
        self._check_live(iteration)
        self._taker = threading.get_ident()
        if self._starts.wait_for_fork:
            self._starts.resume(self._snapshots.take())
        self._receive(0)
        since = time.perf_counter()
        waited = 0.0
        number = self._first(iteration, numbers)
        if number is None:
            number = self._await(iteration, numbers, alone, since)
            waited = time.perf_counter() - since
        return number, self._made.pop((iteration, number)), waited

    def look(self, iteration: int, numbers: list[int]) -> tuple[int, Outcome] | None:
        """Return the number and outcome of the first of these batches that is made, without taking it; None if none
        is."""
        self._receive(0)
        number = self._first(iteration, numbers)
        return None if number is None else (number, self._made[iteration, number])

    def _first(self, iteration: int, numbers: list[int]) -> int | None:
        return next((number for number in numbers if (iteration, number) in self._made), None)

    def _await(self, iteration: int, numbers: list[int], alone: bool, since: float) -> int:
        key = iteration, numbers[0]
        pause, longest = _LOOK_AFTER_WORKERS_S
        while True:
            self._check_open()
            self._receive(0)
            number = self._first(iteration, numbers)
            if number is not None:
                return number
            if self.assignments.is_here(key) or (not self.ready and (alone or not self.size)):
                task = self.assignments.task(key)
                if task is not None:
                    self._made[key] = self._make_here(key, task)
                    return numbers[0]
            if not self._receive(pause):
                self._look_after_workers()
                pause = min(2 * pause, longest)
            if self._trouble is not None:
                self.finish(key[0])
                raise self._trouble
            if self._to_warn:
                told, self._to_warn = self._to_warn, ""
                warnings.warn(told, RuntimeWarning, stacklevel=2)
            if self.timeout and time.perf_counter() - since > self.timeout:
                raise TimeoutError(f"no batch in {self.timeout} s from {self.ready} loading workers")

    @property
    def is_bare(self) -> bool:
        """Whether there are no workers, none that leave, and no streams."""
        return not self.size and not self._workers and self.assignments.is_plain

    def make_here(self, iteration: int, number: int, epoch: int, indices: Indices) -> Outcome:
        """Make a batch in the trainer without assigning it to a worker."""
        self._check_live(iteration)
        return self._here.make(Task(iteration, number, epoch, indices))

    def _make_here(self, key: Key, task: Task) -> Outcome:
        with self._lock:
            task = self.assignments.started(HERE, task)
            self._release()
            maker = self._here.maker_for(task)
        outcome = self._here.make(task, maker)
        with self._lock:
            self.assignments.made(HERE, key, outcome.progress)
        return outcome

    def _receive(self, timeout: float) -> bool:
        """Process the messages of workers, waiting up to `timeout` seconds. Returns whether there were any."""
        if self._results is None:
            if timeout:
                time.sleep(timeout)
            return False
        has_heard = False
        for message in heard(self._results, timeout):
            has_heard = True
            if isinstance(message, Ready):
                self._begins(message)
            else:
                self._is_made(message)
        if has_heard and time.monotonic() - self._looked > _SLOW_S:
            self._look_after_workers()
        return has_heard

    def _begins(self, message: Ready) -> None:
        with self._lock:
            worker = self._workers.get(message.worker)
            if worker is None or worker.leaving:
                return
            if message.error is not None:
                self._trouble = unpack(message.error).error
                self._dismiss(worker)
                return
            if message.lacks is not None:
                worker.datasets.discard(message.lacks)
                if message.lacks in self._snapshots.numbers:
                    self._ship(worker, message.lacks)
            worker.ready, self._failed_starts = True, 0
            self._take_on(worker)

    def _is_made(self, made: Made) -> None:
        if made.kept is not None:
            self._keeper.adopt(made.kept)
        key, outcome = (made.iteration, made.number), unpack(made.outcome)
        with self._lock:
            if self.assignments.made(made.worker, key, made.progress):
                self._made[key] = outcome._replace(samples=made.samples, progress=made.progress)
                self.tally.note(made.effort, made.samples, made.is_shared)
            self._hand_out()

    def _hand_out(self) -> None:
        if self._trouble is not None:
            return  # a trainer for which others lie ready would hear of it late, after the deaths of more workers
        for number, _, task in self.assignments.hand_out():
            worker, dataset = self._workers[number], self._snapshots.number_for(task.iteration)
            if dataset not in worker.datasets:
                self._ship(worker, dataset)
            worker.tasks.put(task._replace(dataset=dataset))
        self._release()

    def _release(self) -> None:
        for number, (iteration, stream) in self.assignments.released():
            if number in self._workers:
                dataset = self._snapshots.number_for(iteration)
                self._workers[number].tasks.put(Release(dataset, iteration, stream))

    def _ship(self, worker: Member, dataset: int) -> None:
        needed = self._snapshots.numbers
        content = self._snapshots.content(dataset, self._snapshots[dataset], needed, worker.node)
        worker.tasks.put(Shipment(dataset, needed, content, self._seed_of(worker)))
        worker.datasets = worker.datasets & needed | {dataset}

    def close(self) -> None:
        """Dismiss all workers."""
        with self._lock:
            self._closed = True
            self.size, self._keeper = 0, Keeper()
            self._reconcile()
            self._starts.end()
            self._snapshots.close()

    def _check_live(self, iteration: int) -> None:
        self._check_open()
        if iteration not in self._live:
            raise LoadingError("this iteration ended with an error of its loading workers: begin another one")
