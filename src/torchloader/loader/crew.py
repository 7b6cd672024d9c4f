"""The workers of a loader, which it starts, replaces and dismisses, and the batches that they make, by iteration."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any
from weakref import WeakMethod

from dragon.control_groups import MemoryKills
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.policy import Policy
from dragon.native.event import Event
from dragon.native.machine import current
from dragon.native.process import Process
from dragon.native.queue import Queue
from dragon.native.value import Value
from dragon.serialization import dumps, import_hint, loads
from dragon.signals import how_ended
from torchloader.loader.exchange import BatchCache
from torchloader.loader.forks import Fork, Template
from torchloader.loader.making import Maker
from torchloader.loader.messages import Effort, Outcome, unpack
from torchloader.loader.options import WorkerPolicy
from torchloader.loader.randomness import KeptRandomState, mix
from torchloader.loader.snapshot import AnySnapshot, Snapshots, received
from torchloader.loader.streams import HERE, Assignments, Key, Place, Share, Task
from torchloader.loader.worker import Made, Ready, Release, Shipment, work


class LoadingError(RuntimeError):
    """Raised when batches cannot be made: workers end when they start, or repeatedly while making one batch."""


@dataclass(eq=False)
class Member:
    """A loading worker, from before its start until it has ended."""

    number: int
    slot: int
    tasks: Queue
    leave: Event
    node: str | None = None  # that it is to be on; None: the trainer's
    process: Process | Fork | None = None
    datasets: set[int] = field(default_factory=set)  # numbers of the snapshots that it has
    is_first: bool = False  # started as an iteration began, which waits for it
    ready: bool = False
    leaving: bool = False


def compared(
    workers: Iterable[Member], nodes: Sequence[str | None], size: int
) -> tuple[list[str | None], list[Member]]:
    """Return the nodes that lack a worker (once per missing worker), and the surplus workers, the newest first."""
    wanted = Counter(nodes[slot % len(nodes)] for slot in range(size))
    surplus = []
    for worker in sorted((each for each in workers if not each.leaving), key=lambda each: each.number):
        if wanted[worker.node]:
            wanted[worker.node] -= 1
        else:
            surplus.append(worker)
    return list(wanted.elements()), surplus[::-1]


@dataclass
class Tally:
    """What the workers have done so far: batches, and their cost."""

    batches: int = 0
    samples: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    delayed: float = 0.0
    died: int = 0
    shared: int = 0

    @property
    def effort(self) -> Effort:
        return Effort(self.seconds, self.cpu, self.delayed)

    def note(self, effort: tuple[float, float, float], samples: int, is_shared: bool = False) -> None:
        """Count a batch that was made, or taken from another loader's workers."""
        # Not with Effort.plus(), which takes 1 µs more.
        self.batches += 1
        self.shared += is_shared
        self.samples += samples
        self.seconds += effort[0]
        self.cpu += effort[1]
        self.delayed += effort[2]


def started(
    target: Callable[..., None], arguments: tuple[Any, ...], template: Template | None, node: str | None = None
) -> Process | Fork:
    """Start a process that calls `target`, forked from the template if there is one, else on a node (or this one)."""
    if template is not None:
        try:
            return template.start(target, arguments)
        except ChildProcessError as error:
            raise LoadingError(str(error)) from None
    place = Policy(placement=Policy.Placement.HOST_NAME, host_name=node or current().hostname)
    process = Process(target, arguments, policy=place, _kind="loading_worker")
    process.start()
    return process


def start_each(starts: SimpleQueue[Member | None], start: WeakMethod[Callable[[Member], None]]) -> None:
    """Start the workers that are put into the queue, until it yields None."""
    # Keeps no dataset alive while it waits: freeing a large tensor in a thread after the interpreter has finished ends
    # the process with SIGABRT.
    while (worker := starts.get()) is not None:
        method = start()
        if method is not None:
            method(worker)
        del method, worker


def messages_of(results: Queue, timeout: float) -> Iterator[Ready | Made]:
    """Yield the messages that have arrived, waiting at most `timeout` seconds for the first."""
    try:
        yield results.get(timeout=timeout) if timeout else results.get_nowait()
        while True:
            yield results.get_nowait()
    except Empty:
        return


_LOOK_AFTER_WORKERS_S = 0.01, 0.1  # seconds without a batch: the first time, and at most
_SLOW_S = 1.0  # seconds between two checks of the workers while batches arrive
_DEATHS = _FAILED_STARTS = 3


class Crew:
    """The workers of a loader, the iterations that they serve, and the batches that they have made. The batches of one
    iteration must be taken by one thread at a time. Workers are spread over the `nodes` in turn; None is this one."""

    def __init__(
        self, maker: Maker, prefetch: int, size: int, policy: WorkerPolicy, nodes: Sequence[str | None] = (None,)
    ) -> None:
        self._policy, self._nodes = policy, list(nodes)
        self._maker, self._is_map_style, self._kept = maker, maker.is_map_style, KeptRandomState()
        self._snapshots = Snapshots(maker, policy)
        self._lock = threading.RLock()
        self.assignments = Assignments(prefetch)
        self._workers: dict[int, Member] = {}
        self._born = self._born_before = self._entropy = 0
        self._live: set[int] = set()  # iterations
        self._failed_starts = 0
        self._memory_kills = MemoryKills()
        self._trouble: BaseException | None = None
        self._to_warn = ""  # of what another thread may have met, in the one that takes batches
        self._starts: SimpleQueue[Member | None] = SimpleQueue()
        self._starter: threading.Thread | None = None
        # Where workers are forked and there is no template yet, they are postponed until the trainer forks one: forking
        # in the thread that starts them would copy other threads in the middle of an operation.
        self._postponed: list[Member] = []
        self._results: Queue | None = None
        self._floor: Value | None = None
        self._looked = time.monotonic()
        self._closed = False
        self.tally, self.size = Tally(), size
        self.begun = 0  # the number of iterations that have begun so far
        self._made: dict[Key, Outcome] = {}
        self._taker: int | None = None
        self._shared = BatchCache()
        self._makers: dict[int, Maker] = {}  # of iterations with streams that the trainer reads

    # ---- iterations

    def open(self, entropy: int, place: Place | None = None, shares: Sequence[Share] = ()) -> int:
        """Begin an iteration with the dataset as it is now, over the streams of these shares from a place on if given.
        Returns its number."""
        # A single stream that is no share is read by the trainer to the end.
        is_plain = not self.size and len(shares) == 1 and not shares[0].streams
        while True:
            self._check_open()
            snapshot = self._snapshots.take() if self.size or (shares and not is_plain) else None
            with self._lock:
                if self.size and snapshot is None:
                    continue  # they have become more meanwhile
                if self._trouble is not None and not self._live:
                    self._begin_anew()
                begins_anew = not self._policy.stays and (self._policy.forks or not self._live)
                if begins_anew or self._snapshots.is_foreign(snapshot):
                    self._dismiss_all()
                self.begun += 1
                self._entropy, self._born_before = entropy, self._born
                self._live.add(self.begun)
                self._snapshots.begin(self.begun, snapshot)
                self._reconcile(is_first=True)
                self._start_postponed(snapshot)
                if place is not None:
                    self.assignments.begin(self.begun, place.progress, shares, is_plain)
                if is_plain:
                    self._makers[self.begun] = self._maker
                return self.begun

    def finish(self, iteration: int) -> None:
        """End an iteration: release its batches and its snapshot."""
        with self._lock:
            self._live.discard(iteration)
            self._snapshots.finish(iteration)
            self.assignments.drop(iteration)
            self._makers.pop(iteration, self._maker).forget(iteration)
            if not self._live and self._policy.forks and not self._policy.stays:
                self._dismiss_all()
                self._snapshots.leave_templates()
            for key in [key for key in self._made if key[0] == iteration]:
                del self._made[key]
            if self._floor is not None:
                self._floor.value = min(self._live, default=self.begun + 1)

    @property
    def window(self) -> int:
        return self.assignments.window(self.size)

    @property
    def depth(self) -> int:
        # In another thread than the taking one, pending messages count: to receive them would make the other one wait.
        if self._taker in (None, threading.get_ident()) and not self._closed:
            self._receive(0)
            return len(self._made)
        return len(self._made) + (0 if self._results is None else self._results.size())

    # ---- batches

    def want(self, task: Task) -> None:
        with self._lock:
            self._check_live(task.iteration)
            self.assignments.want((task.iteration, task.number), task)
            self._hand_out()

    def take(self, iteration: int, numbers: list[int], alone: bool, timeout: float) -> tuple[int, Outcome, float]:
        """Return the first of these batches that is made: its number, outcome, and the seconds in which none was ready.
        Without workers it is made in the trainer; with `alone`, also while workers are starting. Raises LoadingError,
        TimeoutError after `timeout` seconds unless that is 0, and ValueError if the loader is closed."""
        self._check_live(iteration)
        self._taker = threading.get_ident()
        if self._postponed:
            self._start_postponed(self._snapshots.take())
        self._receive(0)
        since, waited = time.perf_counter(), 0.0
        number = self._first(iteration, numbers)
        if number is None:
            number = self._await(iteration, numbers, alone, timeout, since)
            waited = time.perf_counter() - since
        return number, self._made.pop((iteration, number)), waited

    def look(self, iteration: int, numbers: list[int]) -> tuple[int, Outcome] | None:
        """Return the number and outcome of the first of these batches that is made, without taking it, if any."""
        self._receive(0)
        number = self._first(iteration, numbers)
        return None if number is None else (number, self._made[iteration, number])

    def _first(self, iteration: int, numbers: list[int]) -> int | None:
        return next((number for number in numbers if (iteration, number) in self._made), None)

    def _await(self, iteration: int, numbers: list[int], alone: bool, timeout: float, since: float) -> int:
        key = iteration, numbers[0]
        pause, longest = _LOOK_AFTER_WORKERS_S
        while True:
            self._check_open()
            self._receive(0)
            number = self._first(iteration, numbers)
            if number is not None:
                return number
            if self.assignments.is_here(iteration) or (not self.ready and (alone or not self.size)):
                task = self.assignments.task(key)
                if task is not None:
                    self._made[key], _ = self.make_here(task)
                    with self._lock:
                        self.assignments.made(HERE, key, self._made[key].progress)
                    return numbers[0]
            if not self._receive(pause):
                self._look_after_workers()
                pause = min(2 * pause, longest)
            if self._trouble is not None:
                self.finish(key[0])
                raise self._trouble
            if self._to_warn:
                warning, self._to_warn = self._to_warn, ""
                warnings.warn(warning, RuntimeWarning, stacklevel=2)
            if timeout and time.perf_counter() - since > timeout:
                raise TimeoutError(f"no batch in {timeout} s from {self.ready} loading workers")

    def is_bare(self, iteration: int) -> bool:
        """Whether the trainer makes each batch: there are no workers, and none that leave; or it reads the streams."""
        if self._is_map_style:
            return not self.size and not self._workers
        return self.assignments.is_here(iteration)

    def make_here(self, task: Task) -> tuple[Outcome, float]:
        """Return a batch that is made in the trainer, and the seconds that it took."""
        self._check_live(task.iteration)
        maker = self._maker
        if not self._is_map_style:
            with self._lock:
                task = self.assignments.started(HERE, task)
                self._release()
                if task.iteration not in self._makers:  # a copy, as the stream may move to a worker
                    kept = self._snapshots[self._snapshots.number_for(task.iteration)]
                    self._makers[task.iteration] = received(loads(dumps(kept)))
            maker = self._makers[task.iteration]
        start = time.perf_counter()
        with self._kept:  # the program's random state
            outcome = maker.make(task)
        seconds = time.perf_counter() - start
        self.tally.note((seconds, 0.0, 0.0), outcome.samples)
        return outcome, seconds

    def _receive(self, timeout: float) -> bool:
        """Process the messages of workers, waiting up to `timeout` seconds. Returns whether there were any."""
        if self._results is None:
            if timeout:
                time.sleep(timeout)
            return False
        has_received = False
        for message in messages_of(self._results, timeout):
            has_received = True
            if isinstance(message, Ready):
                self._begins(message)
            else:
                self._is_made(message)
        if has_received and time.monotonic() - self._looked > _SLOW_S:
            self._look_after_workers()
        return has_received

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
            self._shared.adopt(made.kept)
        key, outcome = (made.iteration, made.number), unpack(made.outcome)
        with self._lock:
            if self.assignments.made(made.worker, key, made.progress):
                self._made[key] = outcome._replace(samples=made.samples, progress=made.progress)
                self.tally.note(made.effort, made.samples, made.is_shared)
            self._hand_out()

    def _hand_out(self) -> None:
        if self._trouble is not None:
            return  # or the trainer, which takes those that are ready first, would raise it after more deaths
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
        with self._lock:
            self._closed = True
            self.size, self._shared = 0, BatchCache()
            self._reconcile()
            self._starts.put(None)
            self._snapshots.close()

    def _check_live(self, iteration: int) -> None:
        if self._closed or iteration not in self._live:
            self._check_open()
            raise LoadingError("this iteration ended with an error of its loading workers: begin another one")

    # ---- workers

    def resize(self, size: int, nodes: Sequence[str | None] | None = None) -> None:
        """Set the number of workers, and the nodes if given, without waiting."""
        with self._lock:
            self._check_open()
            self.size, self._nodes = size, self._nodes if nodes is None else list(nodes)
            self._reconcile()
            self._hand_out()

    @property
    def ready(self) -> int:
        return self.assignments.workers

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the loader is closed")

    def _take_on(self, worker: Member) -> None:
        if not worker.leaving:
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
        if self._starter is None:
            start = WeakMethod[Callable[[Member], None]](self._start)
            self._starter = threading.Thread(
                target=start_each, args=(self._starts, start), name="loading workers", daemon=True
            )
            self._starter.start()

    def _start_postponed(self, snapshot: AnySnapshot | None) -> None:
        """Start the postponed workers if `snapshot` is not None, that is, if the trainer has forked a template."""
        with self._lock:
            if snapshot is not None:
                self._snapshots.keep(snapshot)
                postponed, self._postponed = self._postponed, []
                for worker in postponed:
                    self._starts.put(worker)

    def _start(self, worker: Member) -> None:
        """Start a worker. Runs in the thread of the starts, mostly without the lock, which a trainer needs to take
        batches."""
        try:
            with self._lock:
                lacks = self._snapshots.lacking and not worker.leaving
                if lacks and self._policy.forks:
                    self._postponed.append(worker)
                    return
            snapshot = self._snapshots.take() if lacks else None
            with self._lock:
                if snapshot is not None:
                    self._snapshots.keep(snapshot)
                if worker.leaving:
                    self._ended(worker, died=False)
                    return
                latest, needed = self._snapshots.latest, self._snapshots.numbers
                kept, template = self._snapshots[latest], self._snapshots.template_of(latest)
            content = self._snapshots.content(latest, kept, needed, worker.node)
            worker.datasets.add(latest)
            worker.tasks.put(Shipment(latest, needed, content, self._seed_of(worker)))
            orders = (os.getpid(), worker.leave, self._floor) if worker.node is None else None
            place = worker.slot, self.size
            arguments = worker.number, place, self._policy.nice, worker.tasks, self._results, orders
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
        """Return the seed of a worker: as in PyTorch that of all that start with the iteration plus its slot."""
        # Workers that replace one have others, as they would draw its numbers again.
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
        if worker in self._postponed:
            self._postponed.remove(worker)
            self._starts.put(worker)

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
            if code == -signal.SIGKILL and worker.node is None and (reason := self._memory_kills.explain()):
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
