"""What a loader is made of, by the style of its dataset."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

from dragon.infrastructure.errors import RunEndedError
from dragon.node_files import NodeFile
from torchloader.loader.assignments import Assignments
from torchloader.loader.checks import check_shared
from torchloader.loader.exchange import joined
from torchloader.loader.making import Maker
from torchloader.loader.order import BatchSamplerOrder, SampleOrder, SamplerOrder
from torchloader.loader.running import StreamMaker
from torchloader.loader.stream_assignments import StreamAssignments
from torchloader.loader.streams import StreamOrder
from torchloader.loader.tasks import Task

__all__ = ["AnyOrder", "maker_of", "order_of", "share"]

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


def share(maker: Maker, name: str | None) -> NodeFile | None:
    """Have the batches of a maker shared with loaders of that name, in a file that is returned; None without a name,
    and, with a RuntimeWarning, where this node has no place for it. Raises what check_shared() raises."""
    if name is None:
        return None
    check_shared(name, isinstance(maker, StreamMaker))
    try:
        file, maker.membership = joined(name)
    except (OSError, RunEndedError) as error:
        warnings.warn(f"batches are not shared as {name!r}: {error}", RuntimeWarning, stacklevel=4)
        return None
    return file
