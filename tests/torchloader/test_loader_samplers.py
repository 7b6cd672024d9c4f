"""Samplers with their own random generators: their epochs are continued exactly, or an error is raised."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest

from torchloader import ElasticDataLoader

LENGTH = 600  # more than a loader takes from a sampler at once


class Drawing:
    """A sampler with an order from a generator that is not reset between epochs."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        order = np.arange(LENGTH)
        self.generator.shuffle(order)
        yield from order.tolist()

    def __len__(self) -> int:
        return LENGTH


class InBatches:
    """A batch sampler that makes batches of seven from another sampler."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[list[int]]:
        drawn = iter(self.inner)
        while some := [index for _, index in zip(range(7), drawn, strict=False)]:
            yield some


def torch_sampler() -> Any:
    data = pytest.importorskip("torch.utils.data")
    torch = pytest.importorskip("torch")
    return data.RandomSampler(range(LENGTH), generator=torch.Generator().manual_seed(3))


MAKERS: list[Callable[[], Any]] = [
    lambda: Drawing(np.random.default_rng(3)),
    lambda: Drawing(np.random.RandomState(3)),
    lambda: Drawing(random.Random(3)),
    torch_sampler,
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("in_batches", [False, True])
def test_a_later_epoch_of_a_sampler_with_a_generator_can_be_continued(
    make: Callable[[], Any], in_batches: bool
) -> None:
    def loader() -> ElasticDataLoader:
        if in_batches:
            return ElasticDataLoader(range(LENGTH), batch_sampler=InBatches(make()), collate_fn=list)
        return ElasticDataLoader(range(LENGTH), 7, sampler=make(), collate_fn=list)

    first, second, third, between = loader(), loader(), loader(), loader()
    list(first)
    between.load_state_dict(first.state_dict())
    batches = iter(first)
    begun = [next(batches) for _ in range(11)]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    others = iter(second)
    begun += [next(others) for _ in range(3)]
    third.load_state_dict(second.state_dict())
    begun += list(third)
    assert begun == list(between)
    assert sorted(chain.from_iterable(begun)) == list(range(LENGTH))
    assert list(third) != begun  # the generator goes on


class Hidden:
    """A sampler whose generator the loader cannot find."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(seed)

        def order() -> list[int]:
            return dice.sample(range(LENGTH), LENGTH)

        self.order = order

    def __iter__(self) -> Iterator[int]:
        yield from self.order()


def test_another_sampler_than_that_of_the_state_is_refused() -> None:
    first, second = (ElasticDataLoader(range(LENGTH), 7, sampler=Hidden(3), collate_fn=list) for _ in range(2))
    list(first)
    batches = iter(first)
    next(batches), next(batches)
    second.load_state_dict(first.state_dict())
    with pytest.raises(ValueError, match="the sampler begins epoch 1 with other samples than it had given"):
        next(iter(second))
    drawing = ElasticDataLoader(range(LENGTH), sampler=Drawing(random.Random(3)))
    with pytest.raises(ValueError, match="give the loader the sampler that it had"):
        ElasticDataLoader(range(LENGTH), sampler=range(LENGTH)).load_state_dict(drawing.state_dict())


@pytest.mark.parametrize("in_batches", [False, True])
def test_the_state_of_one_rank_can_continue_the_distributed_sampler_of_each(in_batches: bool) -> None:
    data = pytest.importorskip("torch.utils.data")

    def loader(rank: int) -> ElasticDataLoader:
        sampler = data.DistributedSampler(range(40), num_replicas=2, rank=rank, seed=3)
        if in_batches:
            batches = data.BatchSampler(sampler, 5, drop_last=False)
            return ElasticDataLoader(range(40), batch_sampler=batches, collate_fn=list)
        return ElasticDataLoader(range(40), 5, sampler=sampler, collate_fn=list)

    first, second = loader(0), loader(1)
    for each in (first, second):
        each.sampler.set_epoch(2) if not in_batches else each.batch_sampler.sampler.set_epoch(2)  # type: ignore[union-attr]
    ours, others = iter(first), iter(second)
    next(ours), next(others)
    for rank, rest in ((1, others), (0, ours)):
        continued = loader(rank)
        continued.load_state_dict(first.state_dict())
        assert list(continued) == list(rest)


class BeginningAnew:
    """A sampler that is its own iterator, and restarts at each iter()."""

    def __iter__(self) -> BeginningAnew:
        self.left = iter(range(LENGTH))
        return self

    def __next__(self) -> int:
        return next(self.left)


def test_a_sampler_that_is_its_own_iterator_begins_once() -> None:
    loader = ElasticDataLoader(range(LENGTH), 7, sampler=BeginningAnew(), collate_fn=list)
    assert list(chain.from_iterable(loader)) == list(range(LENGTH))


def test_a_loader_without_a_seed_uses_that_of_the_state() -> None:
    torch = pytest.importorskip("torch")
    loaders = []
    with torch.random.fork_rng([]):
        for seed in (1, 2):
            torch.manual_seed(seed)
            loaders.append(ElasticDataLoader(range(40), 4, shuffle=True, collate_fn=list))
    first, second = loaders
    assert first.seed != second.seed
    batches = iter(first)
    begun = next(batches) + next(batches)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert sorted(chain(begun, *second)) == list(range(40))


class Repeating:
    """A sampler that begins another one anew whenever that has ended."""

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.sampler


def endless(base: Any, is_allowed: bool) -> Any:
    """Return a class of loaders whose iterator never ends, so that workers stay, in one of the ways of PyTorch's users:
    by allowing that the sampler is set, or by going round the check."""

    class Endless(base):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            name = "sampler" if self.batch_sampler is None else "batch_sampler"
            repeating = Repeating(getattr(self, name))
            if is_allowed:
                self._DataLoader__initialized = False
                setattr(self, name, repeating)
                self._DataLoader__initialized = True
            else:
                object.__setattr__(self, name, repeating)
            self.iterator = super().__iter__()

        def __len__(self) -> int:
            sampler = self.sampler if self.batch_sampler is None else self.batch_sampler
            return len(sampler.sampler)

        def __iter__(self) -> Iterator[Any]:
            for _ in range(len(self)):
                yield next(self.iterator)

        def reset(self) -> None:
            self.iterator = self._get_iterator()

    return Endless


@pytest.mark.parametrize("is_allowed", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [3, None])
def test_loaders_whose_iterator_never_ends_work_as_with_pytorch(
    is_allowed: bool, workers: int, batch_size: int | None
) -> None:
    data = pytest.importorskip("torch.utils.data")
    given = []
    for base in (data.DataLoader, ElasticDataLoader):
        loader = endless(base, is_allowed)(range(10), batch_size, num_workers=workers)
        epochs = [[torch_free(batch) for batch in loader] for _ in range(3)]
        loader.reset()
        given.append([*epochs, [torch_free(batch) for batch in loader]])
        assert len(loader) == len(epochs[0]) == (10 if batch_size is None else 4)
        with pytest.raises(ValueError, match="sampler attribute should not be set after Endless is initialized"):
            loader.sampler = range(3)
    loader.close()
    assert given[0] == given[1]


def torch_free(batch: Any) -> Any:
    return batch.tolist() if hasattr(batch, "tolist") else batch


def test_each_pass_of_an_endless_sampler_is_shuffled_anew() -> None:
    pytest.importorskip("torch.utils.data")
    options = {"shuffle": True, "collate_fn": list, "seed": 3}
    loaders = [endless(ElasticDataLoader, False)(range(60), 7, num_workers=n, **options) for n in (0, 2)]
    alone, together = [[list(loader) for _ in range(3)] for loader in loaders]
    assert alone == together
    assert all(sorted(chain.from_iterable(epoch)) == list(range(60)) for epoch in alone)
    assert alone[0] != alone[1] != alone[2]
    loaders[1].close()


def test_an_endless_batch_sampler_sees_an_epoch_soon_after_it_was_set() -> None:
    data = pytest.importorskip("torch.utils.data")
    sampler = data.DistributedSampler(range(8), num_replicas=1, rank=0)
    loader = endless(ElasticDataLoader, False)(range(8), 1, sampler=sampler, collate_fn=list)
    epochs = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        epochs.append(tuple(index for [index] in loader))
    assert len(set(epochs)) >= 3  # one begins a little before its set_epoch(), as with PyTorch
