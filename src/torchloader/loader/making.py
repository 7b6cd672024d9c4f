"""How a batch is made of its samples."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from torchloader.loader.order import Indices
from torchloader.loader.randomness import mix, number_of, seed_all

__all__ = ["Maker", "default_collate"]


class Maker:
    """Makes batches: the same one from the same seed, epoch and indices, whoever makes it."""

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

    def __call__(self, epoch: int, indices: Indices) -> Any:
        """The batch. Raises what the dataset and collate_fn raise. The random state is the last sample's."""
        collate = default_collate(self.batched) if self.collate_fn is None else self.collate_fn
        with self._worker_info():
            return collate(self._fetch(epoch, indices))

    def _fetch(self, epoch: int, indices: Indices) -> Any:
        dataset, base = self.dataset, mix(self.seed, epoch)
        if not self.batched:
            seed_all(mix(base, number_of(indices)))
            return dataset[indices]
        if getattr(dataset, "__getitems__", None):
            seed_all(mix(base, *(number_of(index) for index in indices[:1])))
            return dataset.__getitems__(indices)
        samples = []
        for index in indices:
            seed_all(mix(base, number_of(index)))
            samples.append(dataset[index])
        return samples

    def be_worker(self, number: int, workers: int) -> None:
        """Call the worker_init_fn, and have torch.utils.data.get_worker_info() answer the functions of the user."""
        if sys.modules.get("torch") is not None:  # None where the program wants it not to be imported
            from torch.utils.data._utils.worker import WorkerInfo

            _collate_in_own_memory()
            self._info = WorkerInfo(
                id=number, num_workers=workers, seed=mix(self.seed, number) >> 1, dataset=self.dataset
            )
        if self.worker_init_fn is not None:
            with self._worker_info():
                seed_all(mix(self.seed, number))
                self.worker_init_fn(number)

    @contextmanager
    def _worker_info(self) -> Iterator[None]:
        if self._info is None:
            yield
            return
        from torch.utils.data._utils import worker

        worker._worker_info = self._info
        try:
            yield
        finally:
            worker._worker_info = None


@cache
def _collate_in_own_memory() -> None:
    """Have default_collate put the tensors of a batch together as it does outside of a worker. For one it would take
    shared memory of PyTorch's, and the batch goes through dragon's."""
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
    """What makes a batch of samples, or of a single one, where nothing else is given."""
    try:
        from torch.utils.data import default_collate as collate
        from torch.utils.data import default_convert as convert
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("without PyTorch (pip install torch) a loader needs a collate_fn") from error
    return collate if batched else convert
