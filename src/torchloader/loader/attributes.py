"""What a loader has as attributes, as PyTorch's has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from torchloader.loader.base import HAS_TORCH, Base
from torchloader.loader.checks import check_number, check_timeout, check_workers
from torchloader.loader.crew import Crew
from torchloader.loader.making import Maker, default_collate
from torchloader.loader.nodes import nodes_for
from torchloader.loader.order import SampleOrder
from torchloader.loader.policy import WorkerPolicy
from torchloader.loader.running import StreamMaker
from torchloader.loader.streams import StreamOrder
from torchloader.loader.tuner import Tuner
from torchloader.loader.tuning import Tuning

__all__ = ["Attributes"]

# What PyTorch's loader lets nobody set, and what ours needs at the start.
_FIXED = {"dataset", "batch_size", "sampler", "batch_sampler", "drop_last", "persistent_workers"} | {
    "generator",
    "multiprocessing_context",
    "in_order",
    "pin_memory_device",
    "seed",
    "rank",
    "world_size",
    "max_workers",
    "streams",
    "snapshot_every_n_steps",
    "workers_on",
    "nice",
    "prefetch_epochs",
    "shared_as",
}
# Options that are kept elsewhere, and lie in vars() as well.
_REFLECTED = "num_workers collate_fn timeout worker_init_fn multiprocessing_context prefetch_factor persistent_workers"


class Attributes(Base):
    """The settings of a loader: those that can be changed take effect at once, or with the next epoch."""

    _iterator = None
    _is_made = False
    _crew: Crew
    _maker: Maker
    _tuner: Tuner | None
    _order: Any
    _context: Any
    _persistent_workers: bool | None
    _policy: WorkerPolicy
    prefetch_epochs: bool
    shared_as: str | None
    _max_workers: int | None
    _workers_on: str | Sequence[str] | None
    _given_seed: int | None
    _given_samplers: tuple[Any, Any]
    _place: tuple[int, int]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and self._is_made:
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        super().__setattr__(name, value)

    def _options(self) -> dict[str, Any]:
        """Those that make such a loader."""
        names = "dataset pin_memory drop_last generator pin_memory_device in_order rank world_size seed max_workers"
        options = {
            name: getattr(self, name) for name in f"{names} streams workers_on nice shared_as {_REFLECTED}".split()
        }
        options["sampler"], options["batch_sampler"] = self._given_samplers
        options["snapshot_every_n_steps"] = self.snapshot_every_n_steps
        return options | {
            "batch_size": 1 if options["batch_sampler"] is not None else self.batch_size,
            "shuffle": isinstance(self._order, SampleOrder) and self._order.shuffle,
            "num_workers": self.num_workers if self._tuner is None else "auto",
            "collate_fn": self._maker.collate_fn,
            "persistent_workers": self._persistent_workers if self.workers else None,
            "prefetch_epochs": self.prefetch_epochs and self.workers > 0,
        }

    def _reflect(self) -> None:
        """Have vars() tell the options as it does with PyTorch's loader, from which frameworks make another one. What
        says how ranks share the samples is not among them: that the sampler does."""
        options = self._options()
        vars(self).update({name: options[name] for name in _REFLECTED.split()}, collate_fn=self.collate_fn)
        given: dict[str, Any] = {"seed": self._given_seed, "max_workers": self._max_workers, "streams": self.streams}
        given |= {"workers_on": self._workers_on, "nice": self.nice or None, "shared_as": self.shared_as}
        if isinstance(self._maker, StreamMaker):
            given["snapshot_every_n_steps"] = self.snapshot_every_n_steps
        vars(self).update({name: value for name, value in given.items() if value is not None})

    @property
    def seed(self) -> int:
        """What order and content depend on, with the epoch."""
        return self._maker.seed

    @property
    def rank(self) -> int:
        """This trainer's place among those that share each epoch."""
        return self._place[0]

    @property
    def world_size(self) -> int:
        """How many trainers share each epoch."""
        return self._place[1]

    @property
    def has_shared_place(self) -> bool:
        """Whether all ranks that did equally many batches stand at the same place, so that the state of one serves all.
        Each has a place of its own in streams, with a sampler, and where batches overtake each other."""
        return self.in_order and self.streams is None and self._given_samplers == (None, None)

    @property
    def max_workers(self) -> int | None:
        """How many "auto" may take, as it was given."""
        return self._max_workers

    @property
    def nice(self) -> int:
        """By how much the priority of the workers is below the trainer's."""
        return self._policy.nice

    @property
    def workers_on(self) -> str | Sequence[str] | None:
        """The nodes that its workers are on, as they were given; None: the trainer's."""
        return self._workers_on

    @property
    def streams(self) -> int | None:
        """How many streams an iterable-style dataset is read in, None for a map-style one. 0 is one that is not told
        that it is one: get_worker_info() is None for it, as in PyTorch's loader without workers."""
        return self._order.streams if isinstance(self._order, StreamOrder) else None

    @property
    def snapshot_every_n_steps(self) -> int:
        """After how many batches of a stream the state of the dataset or its iterator is asked for."""
        return self._maker.snapshot_every if isinstance(self._maker, StreamMaker) else 1

    @property
    def workers(self) -> int:
        """Loading workers that it is to have. To set it is to resize()."""
        return self._crew.size

    @workers.setter
    def workers(self, workers: int) -> None:
        self.resize(workers)

    num_workers = workers

    def resize(self, workers: int, workers_on: str | Sequence[str] | None = None) -> None:
        """Have so many loading workers from now on, which ends "auto". From any thread, at any time, without waiting:
        new workers take batches when they are ready; those that leave finish the batch in hand.

        Args:
            workers: how many.
            workers_on: the nodes for them by turns, as for a loader that is made; by default they stay where they are.

        Raises ValueError once the loader is closed, and for nodes where it was made without workers_on: its workers may
        be forked from the trainer.
        """
        check_workers(workers=workers)
        nodes = None
        if workers_on is not None:
            if self._workers_on is None:
                raise ValueError(
                    f"resize() gets workers_on={workers_on!r}, and the loader was made without: make it with "
                    "workers_on=, at first the name of the trainer's node"
                )
            nodes = nodes_for(workers_on, None)
        tuner, self._tuner = self._tuner, None
        if tuner is not None:
            tuner.close()
        self._crew.resize(workers, nodes)
        self._workers_on = self._workers_on if workers_on is None else workers_on
        self._reflect()

    @property
    def tuning(self) -> Tuning | None:
        """What "auto" has found, and measured last; str() of it is a line. None before that, and without "auto"."""
        return None if self._tuner is None else self._tuner.tuning

    @property
    def persistent_workers(self) -> bool:  # type: ignore[override]
        """Whether its workers stay from one epoch to the next."""
        return self._policy.stays and self.workers > 0

    @property
    def prefetch_factor(self) -> int | None:
        """Batches that each worker makes ahead, None without workers."""
        return self._crew.assignments.prefetch if self.workers else None

    @prefetch_factor.setter
    def prefetch_factor(self, prefetch: int | None) -> None:
        check_number(1, prefetch_factor=prefetch)
        self._crew.assignments.prefetch = int(prefetch or 1)
        self._reflect()

    @property  # type: ignore[misc]
    def multiprocessing_context(self) -> Any:
        """The start method that was given, None without workers."""
        return self._context if self.workers else None

    @property
    def timeout(self) -> float:
        """Seconds to wait for a batch of the workers; 0 is for ever."""
        return self._crew.timeout

    @timeout.setter
    def timeout(self, timeout: float) -> None:
        check_timeout(timeout)
        self._crew.timeout = timeout
        self._reflect()

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        """What makes a batch of samples. Workers have another one from the next epoch on."""
        if self._maker.collate_fn is None and HAS_TORCH:
            return default_collate(self._maker.batched)
        return cast("Callable[[Any], Any]", self._maker.collate_fn)  # None without PyTorch

    @collate_fn.setter
    def collate_fn(self, function: Callable[[Any], Any] | None) -> None:
        self._maker.collate_fn = function
        self._reflect()

    @property
    def worker_init_fn(self) -> Callable[[int], None] | None:
        """What a worker calls at first. Workers have another one from the next epoch on."""
        return self._maker.worker_init_fn

    @worker_init_fn.setter
    def worker_init_fn(self, function: Callable[[int], None] | None) -> None:
        self._maker.worker_init_fn = function
        self._reflect()
