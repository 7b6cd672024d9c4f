"""The base classes from PyTorch, or `object` where PyTorch is not installed, and the samplers that frameworks see."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from torchloader.loader import options
from torchloader.loader.order import MapOrder, SampleOrder

if TYPE_CHECKING:
    from torch import Generator
    from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

    HAS_TORCH = True
    Base = DataLoader[Any]
    _Shared = DistributedSampler[Any]
    Streaming = IterableDataset[Any]
else:
    try:
        if options.is_worker and sys.modules.get("torch") is None:
            # It makes batches and uses no loader: a program without PyTorch has it start in a fraction of the time.
            raise ModuleNotFoundError
        from torch.utils.data import DataLoader as Base
        from torch.utils.data import DistributedSampler as _Shared
        from torch.utils.data import IterableDataset as Streaming
    except ImportError:
        # object itself could not come before Generic.
        HAS_TORCH, Base, _Shared, Streaming = False, type("Base", (), {}), object, object
    else:
        HAS_TORCH = True

_MASK = (1 << 63) - 1  # of a seed that PyTorch takes


class RankSampler(_Shared):
    """The samples of a loader's rank, as a DistributedSampler: frameworks recognize it, do not divide the samples
    again, and call set_epoch(), which is forwarded to the loader."""

    def __init__(self, order: SampleOrder, dataset: Any, set_epoch: Callable[[int], None]) -> None:
        super().__init__(dataset, order.world_size, order.rank, order.shuffle, order.seed)
        self._order = order
        # A cycle would have a loader that nobody needs keep its workers.
        self._set_epoch: weakref.WeakMethod[Callable[[int], None]] | None = weakref.WeakMethod(set_epoch)

    def __iter__(self) -> Iterator[Any]:
        for indices, _ in self._order.batches(self.epoch, 0):
            yield from indices if isinstance(indices, list) else [indices]

    def __len__(self) -> int:
        return self._order.samples

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, here and in the loader."""
        self.epoch = epoch
        forward = None if self._set_epoch is None else self._set_epoch()
        if forward is not None:
            forward(epoch)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_set_epoch": None}


def samplers_of(
    dataset: Any,
    order: MapOrder | None,
    given: tuple[Any, Any],
    batch: tuple[int | None, bool],
    generator: Generator | int | None,
    set_epoch: Callable[[int], None],
) -> tuple[Any, Any]:
    """Return the sampler and batch sampler that PyTorch's DataLoader would have where they were not given. `order` is
    None for streams. `generator` is that of the program, or its seed."""
    sampler, batch_sampler = given
    if not HAS_TORCH:
        return given
    from torch import Generator
    from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler
    from torch.utils.data.dataloader import _InfiniteConstantSampler

    if order is None:
        sampler = _InfiniteConstantSampler()
    elif sampler is None and isinstance(order, SampleOrder) and order.world_size > 1:
        sampler = RankSampler(order, dataset, set_epoch)
    elif sampler is None and order.shuffle and len(dataset) > 0:
        # A plain one, since frameworks replace it or its generator to make ranks agree.
        if isinstance(generator, int):
            generator = Generator().manual_seed(generator & _MASK)
        sampler = RandomSampler(dataset, generator=generator)
    elif sampler is None:
        sampler = SequentialSampler(dataset)
    if batch_sampler is None and batch[0] is not None:
        batch_sampler = BatchSampler(sampler, int(batch[0]), bool(batch[1]))
    return sampler, batch_sampler
