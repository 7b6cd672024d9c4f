"""Makes a batch from its samples."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Self

from dragon.serialization import OnNode, dumps, loads
from torchloader.loader import surroundings
from torchloader.loader.exchange import Membership
from torchloader.loader.order import Indices
from torchloader.loader.outcome import Outcome
from torchloader.loader.randomness import mix, number_of, seed_all
from torchloader.loader.streams import Share
from torchloader.loader.tasks import Task

__all__ = ["Maker", "default_collate"]


class Maker:
    """Makes batches: always the same one from the same seed, epoch and indices, in any process."""

    is_map_style = True

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[Any], Any] | None,
        worker_init_fn: Callable[[int], None] | None,
        batched: bool,
        seed: int,
    ) -> None:
        self.dataset, self.collate_fn, self.worker_init_fn = dataset, collate_fn, worker_init_fn
        self.seed = seed
        self.batched = batched
        self._info: Any = None
        self._share: Share | None = None
        self.membership: Membership | None = None  # where its batches are shared with other loaders
        self.origin: OnNode | None = None  # what it was loaded from, where that is there once for all workers

    def make(self, task: Task) -> Outcome:
        """Return the batch of a task, or the error that was raised. Leaves the random state that the last sample
        left."""
        samples = len(task.indices) if isinstance(task.indices, list) else 1
        try:
            with self.as_worker():
                return Outcome(self.collate(self._fetch(mix(self.seed, task.epoch), task.indices)), None, samples)
        except Exception as error:
            return Outcome(None, error, samples)

    def collate(self, samples: Any) -> Any:
        """Make a batch from samples, or convert a single sample."""
        return (default_collate(self.batched) if self.collate_fn is None else self.collate_fn)(samples)

    def forget(self, iteration: int) -> None:
        """Release what is kept of an iteration: nothing in this class."""

    def release(self, iteration: int, stream: int) -> None:
        """Release a stream that another process continues: there are none in this class."""

    def _fetch(self, base: int, indices: Indices) -> Any:
        """Return the samples, after seeding the generators for them: not for each one, as that takes 8 µs."""
        dataset = self.dataset
        self._seed(base, *map(number_of, indices[:1] if self.batched else [indices]))
        if not self.batched:
            return dataset[indices]
        if getattr(dataset, "__getitems__", None):
            return dataset.__getitems__(indices)
        return [dataset[index] for index in indices]

    def _seed(self, *parts: int) -> None:
        """Seed the generators, and set the seed that get_worker_info() returns."""
        seed = mix(*parts) >> 1  # PyTorch's seeds have 63 bits
        seed_all(seed)
        if self._info is not None:
            object.__setattr__(self._info, "seed", seed)  # its class is frozen

    def another(self) -> Self:
        """Return an unused copy that shares nothing with this object."""
        made: Self = loads(dumps(self)) if self.origin is None else self.origin.load()
        return made

    def be_worker(self, number: int, workers: int, seed: int) -> None:
        """Seed the generators, call worker_init_fn, and set what get_worker_info() returns in the user's functions."""
        self._share = Share(number, workers)
        if sys.modules.get("torch") is not None:  # None where the program wants it not to be imported
            from torch.utils.data._utils.worker import WorkerInfo

            if surroundings.is_worker:
                _collate_in_own_memory()
            self._info = WorkerInfo(id=number, num_workers=workers, seed=seed, dataset=self.dataset)
        if self.worker_init_fn is not None:
            with self.as_worker():
                seed_all(seed)
                self.worker_init_fn(number)

    @contextmanager
    def as_worker(self) -> Iterator[None]:
        """Within the block, let get_worker_info() return this worker's information."""
        with surroundings.sharing(self._share):
            if self._info is None:
                yield
                return
            from torch.utils.data._utils import worker

            worker._worker_info, before = self._info, worker._worker_info
            try:
                yield
            finally:
                worker._worker_info = before


@cache
def _collate_in_own_memory() -> None:
    """Make default_collate stack tensors as it does outside a worker.

    In a worker it would allocate PyTorch's shared memory, but the batch is sent through dragon's.
    """
    from torch import Tensor
    from torch.utils.data._utils import collate, worker

    collate_tensors = collate.default_collate_fn_map[Tensor]

    def collated(*args: Any, **options: Any) -> Any:
        info, worker._worker_info = worker._worker_info, None
        try:
            return collate_tensors(*args, **options)
        finally:
            worker._worker_info = info

    collate.default_collate_fn_map[Tensor] = collated


@cache
def default_collate(batched: bool) -> Callable[[Any], Any]:
    """Return PyTorch's default function that makes a batch of samples, or converts a single one.

    Raises ModuleNotFoundError without PyTorch.
    """
    try:
        from torch.utils.data import default_collate as collate
        from torch.utils.data import default_convert as convert
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("without PyTorch (pip install torch) a loader needs a collate_fn") from error
    return collate if batched else convert
