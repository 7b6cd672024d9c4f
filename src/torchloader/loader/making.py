"""How a batch is made of its samples."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from torchloader.loader.order import Indices
from torchloader.loader.randomness import mix, number_of, seed_all

__all__ = ["Maker"]


class Maker:
    """Makes batches: the same one from the same seed, epoch and indices, whoever makes it."""

    def __init__(self, dataset: Any, collate: Callable[[Any], Any] | None, batched: bool, seed: int) -> None:
        self.dataset = dataset
        self.seed = seed
        self._collate = collate
        self._batched = batched
        self._info: Any = None

    def __call__(self, epoch: int, indices: Indices) -> Any:
        """The batch. Raises what the dataset and collate_fn raise. The random state is the last sample's."""
        collate = _default_collate(self._batched) if self._collate is None else self._collate
        with self._worker_info():
            samples = self._fetch(epoch, indices)
        return collate(samples)

    def _fetch(self, epoch: int, indices: Indices) -> Any:
        dataset, base = self.dataset, mix(self.seed, epoch)
        if not self._batched:
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
        """What torch.utils.data.get_worker_info() tells a dataset from now on."""
        if "torch" in sys.modules:
            from torch.utils.data._utils.worker import WorkerInfo

            self._info = WorkerInfo(
                id=number, num_workers=workers, seed=mix(self.seed, number) >> 1, dataset=self.dataset
            )

    @contextmanager
    def _worker_info(self) -> Iterator[None]:
        # Not while a batch is put together: PyTorch would do that in shared memory of its own.
        if self._info is None:
            yield
            return
        from torch.utils.data._utils import worker

        worker._worker_info = self._info
        try:
            yield
        finally:
            worker._worker_info = None

    def initialise(self, function: Callable[[int], None], number: int) -> None:
        """Call a worker_init_fn."""
        with self._worker_info():
            seed_all(mix(self.seed, number))
            function(number)


@cache
def _default_collate(batched: bool) -> Callable[[Any], Any]:
    try:
        from torch.utils.data import default_collate, default_convert
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("without PyTorch (pip install torch) a loader needs a collate_fn") from error
    return default_collate if batched else default_convert
