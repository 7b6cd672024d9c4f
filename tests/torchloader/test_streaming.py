"""Shuffle buffers and mixes of iterable-style datasets: their samples, and their exact continuation from a state."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stream_datasets import Noisy, Numbers

from torchloader import ElasticDataLoader
from torchloader.streaming import RandomMix, ShuffleBuffer, shard

Make = Callable[[], Any]

PIPELINES: dict[str, Make] = {
    "shuffled": lambda: ShuffleBuffer(range(40), 8, seed=3),
    "mixed": lambda: RandomMix([range(20), range(100, 120)], [3, 1], seed=3),
    "first": lambda: RandomMix([range(20), range(100, 103)], seed=3, stop_criteria="FIRST_DATASET_EXHAUSTED"),
    "nested": lambda: ShuffleBuffer(RandomMix([ShuffleBuffer(range(30), 5, 1), list("abcdef")], seed=2), 6, seed=3),
}


@pytest.mark.parametrize("name", PIPELINES)
@given(data=st.data())
def test_an_iterator_continues_from_a_state(name: str, data: st.DataObject) -> None:
    whole = list(PIPELINES[name]())
    taken = data.draw(st.integers(0, len(whole)))
    first, second = iter(PIPELINES[name]()), iter(PIPELINES[name]())
    assert [next(first) for _ in range(taken)] == whole[:taken]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert list(second) == list(first) == whole[taken:]


def test_a_buffer_gives_each_sample_once_and_at_most_its_size_too_early() -> None:
    given = list(ShuffleBuffer(range(1000), 50, seed=1))
    assert sorted(given) == list(range(1000))
    assert given != sorted(given)
    assert all(sample < place + 50 for place, sample in enumerate(given))


def test_a_buffer_of_the_size_of_the_dataset_is_a_uniform_shuffle() -> None:
    firsts = Counter(next(iter(ShuffleBuffer(range(4), 4, seed=seed))) for seed in range(4000))
    assert all(900 < firsts[sample] < 1100 for sample in range(4))


def test_a_mix_has_each_sample_once_and_keeps_the_order_of_each_dataset() -> None:
    given = list(RandomMix([range(50), range(100, 130)], [1, 5], seed=1))
    assert [sample for sample in given if sample < 100] == list(range(50))
    assert [sample for sample in given if sample >= 100] == list(range(100, 130))


def test_a_mix_that_ends_with_its_first_dataset_has_the_given_weights() -> None:
    datasets = [range(20_000), range(1_000_000, 1_100_000)]
    given = RandomMix(datasets, [3, 1], seed=1, stop_criteria="FIRST_DATASET_EXHAUSTED")
    count = Counter(sample < 1_000_000 for sample in given)
    assert count[True] == 20_000
    assert 2.8 < count[True] / count[False] < 3.2


@pytest.mark.parametrize(
    "make",
    [lambda seed: ShuffleBuffer(range(40), 8, seed), lambda seed: RandomMix([range(20), range(20, 40)], seed=seed)],
)
def test_the_order_depends_on_seed_and_epoch(make: Callable[[int], Any]) -> None:
    first, second = make(3), make(3)
    assert list(first) == list(first) == list(second) != list(make(4))
    second.set_epoch(1)
    assert list(second) != list(first)


def test_the_order_without_a_seed_depends_on_the_random_generator_of_the_program() -> None:
    orders = []
    for seed in (1, 1, 2):
        random.seed(seed)
        orders.append(list(ShuffleBuffer(range(40), 8)))
    assert orders[0] == orders[1] != orders[2]


def test_shard_returns_all_samples_outside_a_loader() -> None:
    assert list(shard(range(4))) == [0, 1, 2, 3]


def test_streams_of_a_loader_divide_a_map_style_dataset() -> None:
    loader = ElasticDataLoader(ShuffleBuffer(range(41), 8), 4, collate_fn=list, streams=3)
    assert sorted(sample for batch in loader for sample in batch) == list(range(41))


class Made:
    """Numbers of a generator, whose position cannot be saved."""

    def __iter__(self) -> Iterator[int]:
        yield from shard(range(60))


def test_a_buffer_or_mix_of_a_dataset_without_a_state_has_none() -> None:
    assert not hasattr(iter(ShuffleBuffer(Made(), 8)), "state_dict")
    assert not hasattr(iter(RandomMix([range(4), Made()])), "state_dict")


@pytest.mark.parametrize(("inner", "workers"), [(Made(), 0), (Numbers(60), 0), (Noisy(60), 2), (range(60), 0)])
def test_a_loader_continues_buffers_and_mixes_from_a_state(inner: Any, workers: int) -> None:
    def loader(number: int) -> ElasticDataLoader:
        mixed = RandomMix([ShuffleBuffer(inner, 8), range(20)])
        return ElasticDataLoader(mixed, 4, collate_fn=list, seed=1, streams=2, num_workers=number)

    whole = list(loader(0))
    with loader(workers) as first, loader(0) as second:
        batches = iter(first)
        begun = [next(batches) for _ in range(9)]
        second.load_state_dict(first.state_dict())
        assert begun + list(second) == whole
        assert list(second) != whole  # the next epoch draws other numbers


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: ShuffleBuffer(range(3), 0), "buffer_size must be at least 1, not 0"),
        (lambda: RandomMix([]), "datasets must not be empty"),
        (lambda: RandomMix([range(3)], [1, 2]), "weights must be as many as the 1 datasets, not 2"),
        (lambda: RandomMix([range(3)], [0]), r"weights must be positive numbers, not \[0.0\]"),
        (lambda: RandomMix([range(3)], stop_criteria="NEVER"), "stop_criteria must be .* not 'NEVER'"),  # type: ignore[arg-type]
    ],
)
def test_invalid_arguments_are_errors(make: Make, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()
