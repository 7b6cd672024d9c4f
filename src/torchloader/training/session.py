"""The interface of a training program to torchloader: it is paused, resumed and given workers, and reports its
progress."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Iterator, Sequence, Sized
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from dragon.native.machine import System, current
from torchloader.loader import Counters, ElasticDataLoader
from torchloader.training import protocol
from torchloader.training.link import Agreement, Decision, Link, RankEnvironment, choose_device, make_process_group
from torchloader.training.saving import CheckpointError, RankCheckpoints, Stateful
from torchloader.training.traces import Phases, Traces

__all__ = ["Left", "Session", "resize", "this_node"]


def this_node() -> str:
    """Return the name of this node in the run."""
    return current().hostname


def resize(loader: ElasticDataLoader, workers: int, away: Sequence[str]) -> None:
    """Set the number of a loader's workers: one on each of the nodes in `away`, the others on this node.

    If the loader was made with a start method of its own, its workers all run on this node, and those in `away` are
    left out, as their cores are not those of this node. A lost node is replaced by this one. Raises ValueError if the
    loader is closed.
    """
    if loader.workers_on is None:
        if away:
            _log.warning(
                "the loader has a start method of its own (multiprocessing_context), so %d of its %d workers, which "
                "were to be on %s, are left out",
                len(away),
                workers,
                ", ".join(sorted(set(away))),
            )
        loader.resize(max(1, workers - len(away)) if away else workers)
        return
    here = this_node()
    there = {policy.host_name for policy in System().hostname_policies()}
    others = [name if name in there else here for name in away]
    loader.resize(workers, [here] * (workers - len(away)) + others or here)


_REPORT_INTERVAL_S = 1.0  # seconds between two reports
_PAUSE_RETRY_S = 10.0  # seconds after a pause whose checkpoint could not be saved
_MAX_TRACEBACK_CHARS = 8000  # characters of a traceback

_log = logging.getLogger(__name__)
_END = object()

# Process groups stay until the process ends. If a program drops the last reference to one, gloo waits for its threads
# with the GIL held, while a thread that frees a tensor waits for the GIL: a deadlock (PyTorch 2.13).
_GROUPS: list[dist.ProcessGroup | None] = []


class Left(SystemExit):
    """Raised in a program that was ordered to leave. It exits with code 0, and `except Exception` does not catch it."""

    def __init__(self, report: protocol.Leaves) -> None:
        super().__init__(0)
        self.report = report


class Session:
    """A rank's part in a managed application. Make it with join(), and use it as a context manager.

    Outside of torchloader, with plain Python or torchrun, the same program runs: no orders arrive, and there are traces
    and checkpoints only if join() was given a folder.

    Attributes:
        application: its name.
        rank, world_size, local_rank: the position of this process among the ranks, as torchrun counts.
        device: the GPU of this rank, or the CPU.
        folder: the folder of traces and checkpoints, or None.
        iteration: completed iterations, including those before a pause.
        epoch: the present epoch, counted from 0 by steps().

    Examples:
        >>> from torchloader.training.session import Session
        >>> with Session.join() as session:
        ...     loader = session.loader(range(8), batch_size=4)
        ...     while session.epoch < 2:
        ...         losses = [float(batch.float().mean()) for batch in session.steps(loader)]
        ...     session.iteration
        4
    """

    def __init__(self, environment: RankEnvironment, device: torch.device, save_every: float) -> None:
        self.application, self.folder = environment.application, environment.folder
        self.rank, self.world_size = environment.rank, environment.world_size
        self.local_rank, self.device = environment.local_rank, device
        self.iteration = self.epoch = self._in_epoch = 0
        self._owns_group = False
        self._save_every, self._saved_at = save_every, time.monotonic()
        self._wanted = Decision.NOTHING
        self._pause_from = 0.0
        self._lock = threading.Lock()
        self._workers, self._away = environment.workers, environment.away
        self._loader: ElasticDataLoader | None = None
        self._checkpoints: RankCheckpoints | None = None
        self._resumed: dict[str, Any] | None = None
        self._traces: Traces | None = None
        self._phases = Phases(device)
        self._since: _Since | None = None
        self._agreement = Agreement(None)
        self._link = Link(environment, self._obey, self._loading, self._note_resize)

    @classmethod
    def join(
        cls,
        folder: str | Path | None = None,
        device: str | torch.device | None = None,
        backend: str | None = None,
        save_every: float = 600.0,
    ) -> Self:
        """Join the application that the environment variables describe; with several ranks this waits for all of them.

        Args:
            folder: the folder of traces and checkpoints, if the environment does not name one.
            device: the device to train on; by default the GPU of this rank, or the CPU if there is none.
            backend: the backend of the process group, which is made if the program has made none; by default nccl if
                every rank has its own GPU, else gloo.
            save_every: seconds between two checkpoints, in case a node fails.

        Raises ValueError for an environment variable with an invalid value, which it names.
        """
        environment = RankEnvironment.read()
        if environment.folder is None and folder is not None:
            environment = replace(environment, folder=Path(folder))
        session = cls(environment, choose_device(device, environment.local_rank), save_every)
        group: dist.ProcessGroup | None = None
        if session.world_size > 1:
            if not dist.is_initialized():
                make_process_group(session.device, backend)
                session._owns_group = True
            # Separate from the program's own group, so that their collective operations do not mix.
            group = dist.new_group(backend="gloo")
            _GROUPS.extend((dist.group.WORLD, group))
            session._agreement = Agreement(group)
        if session.folder is not None:
            checkpoints = session.folder / f"checkpoints-{session.application}"
            session._checkpoints = RankCheckpoints(checkpoints, session.rank, group)
        session._link.start()
        return session

    def loader(self, dataset: Any, batch_size: int | None = 1, *, seed: int = 0, **options: Any) -> ElasticDataLoader:
        """Return an ElasticDataLoader whose workers the application master sets; `options` are those of that class.

        `batch_size` is per rank. `num_workers` has an effect only if no application master sets it. Samples are divided
        among the ranks, unless a sampler does that.
        """
        with self._lock:
            if options.get("sampler") is None and options.get("batch_sampler") is None:
                options = {"rank": self.rank, "world_size": self.world_size, **options}
            if self._away is not None and not options.keys() & {"multiprocessing_context", "workers_on"}:
                options["workers_on"] = this_node()
            self._loader = ElasticDataLoader(dataset, batch_size, seed=seed, **options)
            if self._workers is not None:
                resize(self._loader, self._workers, self._away or ())  # none has started yet
            return self._loader

    def restore(
        self,
        model: Stateful,
        optimizer: Stateful | None = None,
        scheduler: Stateful | None = None,
        loader: Stateful | None = None,
        **others: Stateful,
    ) -> int:
        """Save these parts in checkpoints, and continue from the latest one if there is one. Returns the completed
        iterations.

        `others` is everything else with state_dict() and load_state_dict(), such as a gradient scaler. The random state
        is set when the first step begins. For a loader of an iterable-style dataset, with in_order=False or with a
        sampler, each rank's position is saved, and fits only the same number of ranks.

        Raises CheckpointError if there are checkpoints and none is valid, ValueError for such a position and another
        number of ranks, and what the parts raise for a state that does not fit.
        """
        if self._checkpoints is None:
            return 0
        given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader, **others}
        # Whether each rank's position must be saved.
        shared = loader is None or (isinstance(loader, ElasticDataLoader) and loader.has_shared_place)
        own = [] if shared else ["loader"]
        self._checkpoints.keep({name: part for name, part in given.items() if part is not None}, own)
        self._resumed = self._checkpoints.load()
        if self._resumed is not None:
            self.iteration = self._resumed["iteration"]
            if optimizer is not None and self.iteration:
                # It has stepped before the pause, so the schedule must not warn that it steps before the optimizer.
                optimizer._opt_called = True  # type: ignore[attr-defined]
            self.epoch = self._resumed["progress"]["epoch"]
            # A loader whose position is not saved begins its epoch again.
            self._in_epoch = 0 if loader is None else self._resumed["progress"]["in_epoch"]
        return self.iteration

    def skip(self, loader: ElasticDataLoader, epoch: int, batches: int) -> None:
        """Begin in that epoch, after that many of its batches. Has no effect if the program was restored from a
        checkpoint."""
        if self._resumed is None:
            self.epoch, self._in_epoch = epoch, batches
            position = batches * self.world_size * (loader.batch_size or 1)
            loader.load_state_dict({**loader.state_dict(), "epoch": epoch, "position": position})

    def steps(self, loader: ElasticDataLoader, until: int | None = None) -> Iterator[Any]:
        """Yield the batches of the present epoch, or the rest of it; then the next epoch begins.

        The body of the loop is one iteration. After it Left is raised if the program is to leave. With `until` the
        epoch ends after that many batches. All ranks must do equally many iterations.
        """
        self._begin(loader)
        loader.set_epoch(self.epoch)
        batches = iter(loader)
        try:
            while until is None or self._in_epoch < until:
                before = time.perf_counter()
                batch = next(batches, _END)
                if batch is _END:
                    break
                got = time.perf_counter()
                self._phases.begin(got - before)
                yield batch
                self._end_step(loader, batch, got - before, time.perf_counter() - got)
        finally:
            self.epoch, self._in_epoch = self.epoch + 1, 0

    def timed(self, phase: str) -> AbstractContextManager[None]:
        """Return a context manager that measures a phase of the iteration: "datatransfer", "forward", "backward" or
        "update".

        Raises ValueError for another phase.
        """
        return self._phases.timed(phase)

    def record(self, loss: Tensor | float) -> None:
        """Record the loss of this iteration. Does not wait for a GPU."""
        self._phases.record(loss)

    def save(self) -> None:
        """Save a checkpoint now; all ranks must call this. Raises CheckpointError; does nothing without a folder."""
        if self._checkpoints is not None:
            self._checkpoints.save(self.iteration, {"epoch": self.epoch, "in_epoch": self._in_epoch})
            self._saved_at = time.monotonic()

    def close(self, error: BaseException | None = None) -> None:
        """Report how the program ended, and leave. `error` is what the program raised, or None."""
        self._link.close()
        ended_well = error is None or (isinstance(error, SystemExit) and error.code in (0, None))
        if self._traces is not None:
            self._beat(last=True)
            self._traces.close()
        if isinstance(error, Left):
            self._link.report(error.report)
        elif ended_well:
            self._agreement.close()
            self._link.report(protocol.Leaves(self.rank, self.iteration, "finished"))
        elif error is not None:
            text = "".join(traceback.format_exception(error))
            self._link.report(protocol.Failed(self.rank, text[-_MAX_TRACEBACK_CHARS:]))
        # After an error other ranks may wait for this one: they notice its end when the process ends.
        if self._owns_group and ended_well:
            dist.destroy_process_group()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)

    # Orders come in the link's thread.

    def _obey(self, order: protocol.Order) -> None:
        if isinstance(order, protocol.Resize):
            with self._lock:
                self._workers = order.workers
                self._away = None if self._away is None else order.away
                if self._loader is not None:
                    try:
                        resize(self._loader, order.workers, order.away)
                    except ValueError:
                        self._loader = None  # the program has closed it: the next loader begins with this number
        elif isinstance(order, protocol.Pause):
            self._wanted = max(self._wanted, Decision.PAUSE)
        elif isinstance(order, protocol.Cancel):
            self._wanted = Decision.CANCEL

    def _loading(self) -> int:
        loader = self._loader
        return (self._workers or 0) if loader is None else loader.counters.workers

    def _note_resize(self, order: protocol.Resize, workers: int, seconds: float) -> None:
        self._link.report(protocol.Resized(self.rank, workers, seconds))
        if self._traces is not None:
            self._traces.workers(time.time(), self.iteration, workers, order.reason, seconds)

    # Iterations.

    def _begin(self, loader: ElasticDataLoader) -> None:
        if self._since is None:
            if self._resumed is not None and self._checkpoints is not None:
                self._checkpoints.set_random_state(self._resumed)
            if self.folder is not None:
                self._traces = Traces(self.folder, self.application, self.rank, self.iteration)
            self._saved_at = time.monotonic()
            self._link.report(protocol.Started(self.rank, self.iteration, loader.workers))
        elif self._since.loader is not loader:
            self._beat()
        else:
            return
        self._loader = loader
        self._since = _Since(loader)

    def _end_step(self, loader: ElasticDataLoader, batch: object, waited: float, computed: float) -> None:
        self.iteration += 1
        self._in_epoch += 1
        self._phases.end(self.iteration)
        assert self._since is not None
        self._since.samples += _samples(batch, loader)
        self._since.waited += waited
        self._since.computed += computed
        if self._since.waited + self._since.computed >= _REPORT_INTERVAL_S:
            self._beat()
        wanted = self._wanted
        if wanted is Decision.PAUSE and time.monotonic() < self._pause_from:
            wanted = Decision.NOTHING
        if wanted is Decision.NOTHING and self.rank == 0 and time.monotonic() - self._saved_at > self._save_every:
            wanted = Decision.SAVE if self._checkpoints is not None else wanted
        self._follow(self._agreement.after(wanted, waited + computed))

    def _follow(self, agreed: Decision) -> None:
        if agreed is Decision.CANCEL:
            raise Left(protocol.Leaves(self.rank, self.iteration, "cancelled"))
        if agreed is Decision.NOTHING:
            return
        try:
            self.save()
        except CheckpointError as error:
            # Leaving now would lose the training since the last checkpoint: a pause is retried later.
            self._saved_at = time.monotonic()
            self._pause_from = self._saved_at + _PAUSE_RETRY_S
            _log.warning("training continues without this checkpoint: %s", error)
            return
        if agreed is Decision.PAUSE:
            raise Left(protocol.Leaves(self.rank, self.iteration, "paused"))

    def _beat(self, last: bool = False) -> None:
        """Report what was done since the last report, and write it to the traces."""
        since, loss = self._since, None
        if since is None:
            return
        for done in self._phases.done(wait=last):
            loss = None if done.loss is None else float(done.loss)
            if self._traces is not None:
                self._traces.iteration(done.number, done.seconds(), loss)
        if not since.samples:
            return
        counters = since.loader.counters
        now, workers = time.time(), counters.workers
        done_since = since.samples, since.waited, since.computed, workers
        service = _service(since.counters, counters)
        self._link.report(protocol.Progress(self.rank, self.iteration, *done_since, service, loss))
        if self._traces is not None:
            self._traces.heartbeat(now, self.iteration, *done_since)
        self._since = _Since(since.loader)


class _Since:
    """What a rank has done since its last report."""

    def __init__(self, loader: ElasticDataLoader) -> None:
        self.loader, self.counters = loader, loader.counters
        self.samples = 0
        self.waited = self.computed = 0.0


def _service(before: Counters, now: Counters) -> float | None:
    """Return the seconds of a worker's time per sample between two readings; None if no sample was made."""
    made = now.made - before.made
    return (now.made * now.service - before.made * before.service) / made if made > 0 else None


def _samples(batch: object, loader: ElasticDataLoader) -> int:
    """Return the number of samples of a batch: the length of the first tensor in it."""
    found = batch
    while not isinstance(found, Tensor):
        if isinstance(found, dict) and found:
            found = next(iter(found.values()))
        elif isinstance(found, (list, tuple)) and found:
            found = found[0]
        else:
            return len(found) if isinstance(found, Sized) else loader.batch_size or 1
    return len(found) if found.dim() else 1
