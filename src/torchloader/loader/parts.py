"""What a loader is made of, by the style of its dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torchloader.loader.assignments import Assignments
from torchloader.loader.making import Maker
from torchloader.loader.order import BatchSamplerOrder, SampleOrder, SamplerOrder
from torchloader.loader.running import StreamMaker
from torchloader.loader.stream_assignments import StreamAssignments
from torchloader.loader.streams import StreamOrder
from torchloader.loader.tasks import Task

__all__ = ["AnyOrder", "maker_of", "order_of"]

AnyOrder = SampleOrder | SamplerOrder | BatchSamplerOrder | StreamOrder


def order_of(
    dataset: Any,
    seed: int,
    batch: tuple[int | None, bool],
    samplers: tuple[Iterable[Any] | None, Iterable[Any] | None],
    shuffle: bool,
    streams: int | None,
    place: tuple[int, int],
) -> AnyOrder:
    """The order of its batches; of an iterable-style dataset with so many streams. `batch` is the size and whether a
    smaller last one is dropped."""
    sampler, batch_sampler = samplers
    if streams is not None:
        return StreamOrder(dataset, seed, *batch, streams, *place)
    if batch_sampler is not None:
        return BatchSamplerOrder(batch_sampler, seed)
    if sampler is not None:
        return SamplerOrder(sampler, seed, *batch)
    len(dataset)  # where it raises it does so here
    return SampleOrder(dataset, shuffle, seed, *batch, *place)


def maker_of(
    order: AnyOrder,
    dataset: Any,
    functions: tuple[Callable[[Any], Any] | None, Callable[[int], None] | None],
    batch: tuple[int | None, bool],
    snapshot_every: int,
    prefetch: int,
) -> tuple[Maker, Assignments[Task]]:
    """What makes its batches, and what says who makes which. `functions` are collate_fn and worker_init_fn."""
    if isinstance(order, StreamOrder):
        return StreamMaker(dataset, *functions, *batch, order.seed, snapshot_every), StreamAssignments(prefetch)
    batched = isinstance(order, BatchSamplerOrder) or batch[0] is not None
    return Maker(dataset, *functions, batched, order.seed), Assignments(prefetch)
