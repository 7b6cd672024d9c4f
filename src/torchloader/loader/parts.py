"""Constructs the parts of a loader that depend on the style of its dataset."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

from dragon.infrastructure.errors import RunEndedError
from dragon.node_files import NodeFile
from torchloader.loader.checks import check_shared
from torchloader.loader.exchange import joined
from torchloader.loader.making import Maker, StreamMaker
from torchloader.loader.order import BatchSamplerOrder, SampleOrder, SamplerOrder
from torchloader.loader.stream_assignments import StreamAssignments
from torchloader.loader.streams import Assignments, StreamOrder
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
    """Return the order of the batches. `batch` is (size, whether a smaller last one is dropped), `place` (rank, world
    size).

    `streams` is None for a map-style dataset.
    """
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
    """Return the maker of the batches, and their assignments to workers. `functions` is (collate_fn,
    worker_init_fn)."""
    if isinstance(order, StreamOrder):
        return StreamMaker(dataset, *functions, *batch, order.seed, snapshot_every), StreamAssignments(prefetch)
    batched = isinstance(order, BatchSamplerOrder) or batch[0] is not None
    return Maker(dataset, *functions, batched, order.seed), Assignments(prefetch)


def share(maker: Maker, name: str | None) -> NodeFile | None:
    """Share the batches of a maker with loaders of that name, through a file that is returned.

    Returns None without a name, and, after a RuntimeWarning, if the file cannot be made. Raises what check_shared()
    raises.
    """
    if name is None:
        return None
    check_shared(name, isinstance(maker, StreamMaker))
    try:
        file, maker.membership = joined(name)
    except (OSError, RunEndedError) as error:
        warnings.warn(f"batches are not shared as {name!r}: {error}", RuntimeWarning, stacklevel=4)
        return None
    return file
