"""The settings of a loader, as attributes with the names that PyTorch's DataLoader uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from torchloader.loader.base import HAS_TORCH, Base
from torchloader.loader.crew import Crew
from torchloader.loader.making import Maker, StreamMaker, default_collate
from torchloader.loader.options import WorkerPolicy, check_number, check_timeout, check_workers, nodes_for
from torchloader.loader.order import SampleOrder
from torchloader.loader.streams import StreamOrder
from torchloader.loader.tuner import Tuner, Tuning

# What PyTorch's loader lets nobody set, and what ours needs at the start.
_FIXED = {"dataset", "batch_size", "sampler", "batch_sampler", "drop_last", "persistent_workers"} | {
    *("generator", "multiprocessing_context", "in_order", "pin_memory_device", "seed", "rank", "world_size"),
    *("max_workers", "streams", "snapshot_every_n_steps", "workers_on", "nice", "shared_as"),
}
# Options that are kept elsewhere, and lie in vars() as well.
_REFLECTED = "num_workers collate_fn timeout worker_init_fn multiprocessing_context prefetch_factor persistent_workers"


class Attributes(Base):
    """The settings of a loader. Changes take effect at once, or with the next epoch."""

    _iterator = None
    _DataLoader__initialized = False  # PyTorch's, which subclasses set to replace a sampler
    _crew: Crew
    _maker: Maker
    _tuner: Tuner | None
    _order: Any
    _context: Any
    _persistent_workers: bool | None
    _policy: WorkerPolicy
    shared_as: str | None
    _max_workers: int | None
    _workers_on: str | Sequence[str] | None
    _given_seed: int | None
    _given_samplers: tuple[Any, Any]
    _place: tuple[int, int]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and self._DataLoader__initialized:
            raise ValueError(f"{name} attribute should not be set after {type(self).__name__} is initialized")
        super().__setattr__(name, value)

    def _options(self) -> dict[str, Any]:
        """Return the constructor arguments that make an equal loader."""
        names = "dataset pin_memory generator pin_memory_device in_order rank world_size seed max_workers"
        options = {
            name: getattr(self, name) for name in f"{names} streams workers_on nice shared_as {_REFLECTED}".split()
        }
        options["sampler"], options["batch_sampler"] = self._given_samplers
        options["snapshot_every_n_steps"] = self.snapshot_every_n_steps
        return options | {
            "batch_size": 1 if options["batch_sampler"] is not None else self.batch_size,
            "drop_last": self.drop_last and options["batch_sampler"] is None,
            "shuffle": isinstance(self._order, SampleOrder) and self._order.shuffle,
            "num_workers": self.num_workers if self._tuner is None else "auto",
            "collate_fn": self._maker.collate_fn,
            "persistent_workers": self._persistent_workers if self.workers else None,
        }

    def _reflect(self) -> None:
        """Store the options in vars(), from which frameworks construct a similar loader, as they do with PyTorch's
        DataLoader. rank and world_size are left out, since the sampler already divides the samples among ranks."""
        options = self._options()
        vars(self).update({name: options[name] for name in _REFLECTED.split()}, collate_fn=self.collate_fn)
        given: dict[str, Any] = {"seed": self._given_seed, "max_workers": self._max_workers, "streams": self.streams}
        given |= {"workers_on": self._workers_on, "nice": self.nice or None, "shared_as": self.shared_as}
        if isinstance(self._maker, StreamMaker):
            given["snapshot_every_n_steps"] = self.snapshot_every_n_steps
        vars(self).update({name: value for name, value in given.items() if value is not None})

    @property
    def seed(self) -> int:
        """The seed that, with the epoch, determines the order and content of batches."""
        return self._maker.seed

    @property
    def rank(self) -> int:
        """The rank of this trainer among the `world_size` trainers that share each epoch."""
        return self._place[0]

    @property
    def world_size(self) -> int:
        """The number of trainers that share each epoch."""
        return self._place[1]

    @property
    def has_shared_place(self) -> bool:
        """Whether all ranks that took equally many batches have the same position, so that one rank's state serves all.

        False for streams, with a sampler or batch sampler, and with in_order=False: there each rank has its own
        position.
        """
        return self.in_order and self.streams is None and self._given_samplers == (None, None)

    @property
    def max_workers(self) -> int | None:
        """The largest number of workers that "auto" may choose, as it was given; None for the default."""
        return self._max_workers

    @property
    def nice(self) -> int:
        """By how much the priority of the workers is below the trainer's, from 0 to 19."""
        return self._policy.nice

    @property
    def workers_on(self) -> str | Sequence[str] | None:
        """The nodes that run the workers, as they were given; None for the trainer's node."""
        return self._workers_on

    @property
    def streams(self) -> int | None:
        """The number of streams that an iterable-style dataset is read in; None for a map-style one.

        0 means one stream for which get_worker_info() is None, as in PyTorch's DataLoader without workers.
        """
        return self._order.streams if isinstance(self._order, StreamOrder) else None

    @property
    def snapshot_every_n_steps(self) -> int:
        """The number of batches of a stream between two calls of state_dict() of the dataset or its iterator."""
        return self._maker.snapshot_every if isinstance(self._maker, StreamMaker) else 1

    @property
    def workers(self) -> int:
        """The requested number of loading workers. Setting it calls resize()."""
        return self._crew.size

    @workers.setter
    def workers(self, workers: int) -> None:
        self.resize(workers)

    num_workers = workers

    def resize(self, workers: int, workers_on: str | Sequence[str] | None = None) -> None:
        """Set the number of loading workers, and end "auto". May be called from any thread at any time, and does not
        wait.

        New workers take batches once they are ready; those that leave finish the batch that they are making.

        Args:
            workers: the number of workers.
            workers_on: the names of the nodes that the workers are spread over in turn; by default they stay where they
                are.

        Raises ValueError if the loader is closed, or for `workers_on` if the loader was made without it (its workers
        may be forked from the trainer).
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
        """What "auto" has chosen and last measured; str() of it is one line. None before the first measurement and
        without "auto"."""
        return None if self._tuner is None else self._tuner.tuning

    @property
    def persistent_workers(self) -> bool:  # type: ignore[override]
        """Whether workers stay from one epoch to the next."""
        return self._policy.stays and self.workers > 0

    @property
    def prefetch_factor(self) -> int | None:
        """The number of batches that each worker makes ahead; None without workers."""
        return self._crew.assignments.prefetch if self.workers else None

    @prefetch_factor.setter
    def prefetch_factor(self, prefetch: int | None) -> None:
        check_number(1, prefetch_factor=prefetch)
        self._crew.assignments.prefetch = int(prefetch or 1)
        self._reflect()

    @property  # type: ignore[misc]
    def multiprocessing_context(self) -> Any:
        """The start method or context that was given; None without workers."""
        return self._context if self.workers else None

    @property
    def timeout(self) -> float:
        """Seconds to wait for a batch from the workers; 0 means no limit."""
        return self._crew.timeout

    @timeout.setter
    def timeout(self, timeout: float) -> None:
        check_timeout(timeout)
        self._crew.timeout = timeout
        self._reflect()

    @property
    def collate_fn(self) -> Callable[[Any], Any]:
        """The function that makes a batch from its samples. A new one is used by workers from the next epoch on."""
        if self._maker.collate_fn is None and HAS_TORCH:
            return default_collate(self._maker.batched)
        return cast("Callable[[Any], Any]", self._maker.collate_fn)  # None without PyTorch

    @collate_fn.setter
    def collate_fn(self, function: Callable[[Any], Any] | None) -> None:
        self._maker.collate_fn = function
        self._reflect()

    @property
    def worker_init_fn(self) -> Callable[[int], None] | None:
        """The function that each worker calls when it starts. A new one is used from the next epoch on."""
        return self._maker.worker_init_fn

    @worker_init_fn.setter
    def worker_init_fn(self, function: Callable[[int], None] | None) -> None:
        self._maker.worker_init_fn = function
        self._reflect()
