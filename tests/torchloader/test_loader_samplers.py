"""Samplers with their own random generators: their epochs are continued exactly, or an error is raised."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest

from conftest import Site
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

    first, second, third = loader(), loader(), loader()
    list(first)
    batches = iter(first)
    begun = [next(batches) for _ in range(11)]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    others = iter(second)
    begun += [next(others) for _ in range(3)]
    third.load_state_dict(second.state_dict())
    begun += list(third)
    assert sorted(chain.from_iterable(begun)) == list(range(LENGTH))
    assert list(third) != begun  # the generator goes on


@pytest.mark.parametrize("make", MAKERS[:1])
def test_a_state_between_epochs_has_the_generator(make: Callable[[], Any]) -> None:
    first = ElasticDataLoader(range(LENGTH), 7, sampler=make(), collate_fn=list)
    second = ElasticDataLoader(range(LENGTH), 7, sampler=make(), collate_fn=list)
    list(first)
    second.load_state_dict(first.state_dict())
    assert list(second) == list(first)


class Hidden:
    """A sampler whose generator the loader cannot find."""

    def __init__(self, seed: int) -> None:
        dice = random.Random(seed)

        def order() -> list[int]:
            return dice.sample(range(LENGTH), LENGTH)

        self.order = order

    def __iter__(self) -> Iterator[int]:
        yield from self.order()


def test_a_sampler_that_begins_with_other_samples_is_refused() -> None:
    first = ElasticDataLoader(range(LENGTH), 7, sampler=Hidden(3), collate_fn=list)
    second = ElasticDataLoader(range(LENGTH), 7, sampler=Hidden(3), collate_fn=list)
    list(first)
    batches = iter(first)
    next(batches), next(batches)
    second.load_state_dict(first.state_dict())
    with pytest.raises(ValueError, match="the sampler begins epoch 1 with other samples than it had given"):
        next(iter(second))


def test_the_state_of_another_sampler_is_refused() -> None:
    first = ElasticDataLoader(range(LENGTH), sampler=Drawing(random.Random(3)))
    second = ElasticDataLoader(range(LENGTH), sampler=range(LENGTH))
    with pytest.raises(ValueError, match="give the loader the sampler that it had"):
        second.load_state_dict(first.state_dict())


def test_the_epoch_of_a_distributed_sampler_is_in_the_state() -> None:
    data = pytest.importorskip("torch.utils.data")

    def loader() -> ElasticDataLoader:
        sampler = data.DistributedSampler(range(40), num_replicas=2, rank=1)
        return ElasticDataLoader(range(40), 5, sampler=sampler, collate_fn=list)

    first, second = loader(), loader()
    first.sampler.set_epoch(4)  # type: ignore[union-attr]
    batches = iter(first)
    begun = [next(batches)]
    second.load_state_dict(first.state_dict())
    assert begun + list(second) == list(first)


@pytest.mark.parametrize("in_batches", [False, True])
def test_the_state_of_one_rank_can_continue_the_distributed_sampler_of_another(in_batches: bool) -> None:
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
    continued = loader(1)
    continued.load_state_dict(first.state_dict())
    assert list(continued) == list(others)


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


RESUMED = """
import json, sys
import torch
from torchloader import ElasticDataLoader

loader = ElasticDataLoader(range(40), 4, shuffle=True, collate_fn=list)
if sys.argv[1:]:
    loader.load_state_dict(json.loads(sys.argv[1]))
    print(json.dumps(sum(loader, [])))
else:
    batches = iter(loader)
    print(json.dumps([next(batches) + next(batches), loader.state_dict()]))
"""


def test_a_loader_without_a_seed_uses_that_of_the_state(site: Site) -> None:
    pytest.importorskip("torch")
    begun, state = json.loads(site.python(RESUMED).stdout)
    rest = json.loads(site.python(RESUMED, json.dumps(state)).stdout)
    assert sorted(begun + rest) == list(range(40))
