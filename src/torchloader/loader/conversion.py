"""Makes an ElasticDataLoader from a DataLoader of PyTorch."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from torchloader.loader.checks import is_iterable_style
from torchloader.loader.loader import ElasticDataLoader

__all__ = ["elastic"]


def elastic(loader: DataLoader[Any], **changes: Any) -> ElasticDataLoader:
    """Make an ElasticDataLoader from the settings of a DataLoader of PyTorch.

    `changes` are options of ElasticDataLoader that replace those settings, such as num_workers="auto", or rank and
    world_size.

    A plain sequential or shuffled order becomes the loader's own order, so that ranks can share it and its state is
    small; other samplers are used unchanged. Workers start with the start method of the loader. They stay from one
    epoch to the next, as with ElasticDataLoader, unless `changes` has persistent_workers. The given loader and its
    iterators are not changed.

    An iterable-style dataset is read in as many streams as the loader has workers.

    Raises TypeError if `loader` is not a DataLoader, or is of a class that overrides how it iterates.
    """
    if not isinstance(loader, DataLoader):
        raise TypeError(f"elastic() takes a torch.utils.data.DataLoader, not {type(loader).__name__}")
    if isinstance(loader, ElasticDataLoader):
        if changes:
            raise TypeError("the loader is elastic: make another one, or use resize() and set_epoch()")
        return loader
    for method in ("__iter__", "_get_iterator", "__len__"):
        if getattr(type(loader), method) is not getattr(DataLoader, method):
            raise TypeError(
                f"{type(loader).__name__} has a {method}() of its own, and what that does cannot be taken over: make "
                "an ElasticDataLoader of its dataset"
            )
    names = "dataset collate_fn pin_memory timeout worker_init_fn generator pin_memory_device in_order num_workers"
    options = {name: getattr(loader, name) for name in names.split() if hasattr(loader, name)}
    if changes.get("workers", changes.get("num_workers", loader.num_workers)) != 0:
        options["prefetch_factor"] = loader.prefetch_factor
        options["multiprocessing_context"] = loader.multiprocessing_context
        options["persistent_workers"] = loader.persistent_workers or None
    return ElasticDataLoader(**{**options, **_order_of(loader), **changes})


def _order_of(loader: DataLoader[Any]) -> dict[str, Any]:
    sampler, batch_sampler = loader.sampler, loader.batch_sampler
    dataset: Any = loader.dataset
    batches = {"batch_size": loader.batch_size, "drop_last": loader.drop_last}
    if is_iterable_style(dataset):
        return {**batches, "streams": loader.num_workers}
    if batch_sampler is not None and (loader.batch_size is None or type(batch_sampler) is not BatchSampler):
        return {"batch_sampler": batch_sampler}
    if type(sampler) is SequentialSampler and sampler.data_source is dataset:
        return batches
    if (
        type(sampler) is RandomSampler
        and sampler.data_source is dataset
        and not sampler.replacement
        and sampler._num_samples is None
        and sampler.generator is loader.generator
    ):
        return {**batches, "shuffle": True}
    return {**batches, "sampler": sampler}
