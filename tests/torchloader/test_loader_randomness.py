"""Random numbers in a dataset: they depend on seed, epoch and index, although not every sample seeds the generators."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torchloader import ElasticDataLoader

torch = pytest.importorskip("torch")

DRAWS: list[Callable[[], float]] = [
    lambda: 0.0,
    random.random,
    lambda: random.gauss(0, 1),  # makes two numbers and keeps one
    lambda: float(np.random.rand()),
    lambda: float(np.random.standard_normal()),
    lambda: float(torch.rand(())),
    lambda: float(torch.randn(())),
    lambda: float(torch.initial_seed()),
    lambda: sum(random.random() for _ in range(312)),  # as often as it takes to come to the same place of the state
]


class Drawing:
    """Samples that draw random numbers in different ways, and the number of reads of each in this process."""

    def __init__(self, ways: list[int]) -> None:
        self.ways, self.read = ways, [0] * len(ways)

    def __len__(self) -> int:
        return len(self.ways)

    def __getitem__(self, index: int) -> tuple[int, float]:
        self.read[index] += 1
        return index, DRAWS[self.ways[index]]()

    def __getstate__(self) -> dict[str, Any]:
        return {"ways": self.ways, "read": [0] * len(self.ways)}


def loader_of(dataset: Any, **options: Any) -> ElasticDataLoader:
    return ElasticDataLoader(dataset, **{"batch_size": 3, "collate_fn": list, "seed": 1, **options})


def seeded(ways: list[int], epoch: int = 0) -> list[list[tuple[int, float]]]:
    """Return the batches, each one from a new loader that starts at its position."""
    batches = []
    for position in range(0, len(ways), 3):
        loader = loader_of(Drawing(ways))
        loader.load_state_dict({"version": 1, "seed": 1, "epoch": epoch, "position": position})
        batches.append(next(iter(loader)))
    return batches


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.integers(0, len(DRAWS) - 1), max_size=12))
def test_random_numbers_of_a_sample_do_not_depend_on_other_samples(ways: list[int]) -> None:
    random.gauss(0, 1)
    np.random.standard_normal()
    loader = loader_of(Drawing(ways))
    assert list(loader) == seeded(ways)
    assert list(loader) == seeded(ways, 1)


def test_workers_draw_the_same_random_numbers() -> None:
    ways = [*range(len(DRAWS)), *range(len(DRAWS))]
    with loader_of(Drawing(ways), num_workers=2) as loader:
        assert list(loader) == seeded(ways)


def test_the_generators_of_the_trainer_are_unchanged() -> None:
    def numbers() -> list[float]:
        return [draw() for draw in DRAWS for _ in range(2)]

    for generator in (random.seed, np.random.seed, torch.manual_seed):
        generator(5)
    expected = numbers() + numbers()
    for generator in (random.seed, np.random.seed, torch.manual_seed):
        generator(5)
    begun = numbers()
    for ways in ([0, 0, 0], list(range(len(DRAWS)))):
        list(loader_of(Drawing(ways)))
    assert begun + numbers() == expected


def test_the_random_numbers_of_a_collate_function_are_reproducible() -> None:
    def noisy(samples: list[Any]) -> float:
        return random.random()

    loader = loader_of(Drawing([0] * 6), collate_fn=noisy)
    once, again = list(loader), list(loader_of(Drawing([0] * 6), collate_fn=noisy))
    assert once == again
    assert once[0] != once[1]


def test_samples_that_draw_nothing_are_read_once() -> None:
    dataset = Drawing([0] * 12)
    list(loader_of(dataset))
    assert dataset.read == [1] * 12


def test_the_first_sample_that_draws_is_read_twice() -> None:
    dataset = Drawing([5] * 12)
    loader = loader_of(dataset)
    list(loader)
    list(loader)
    assert dataset.read == [3] + [2] * 11


def test_the_first_batch_whose_samples_draw_is_read_again() -> None:
    dataset = Drawing([0, 0, 0, 0, 1, 0, 1, 1, 1])
    list(loader_of(dataset))
    assert dataset.read == [1, 1, 1, 2, 2, 2, 1, 1, 1]


def test_a_sample_that_raises_has_the_random_numbers_of_its_seed() -> None:
    class Raising(Drawing):
        def __getitem__(self, index: int) -> tuple[int, float]:
            raise ValueError(str(super().__getitem__(index)[1]))

    def told(position: int) -> str:
        loader = loader_of(Raising([1] * 6), batch_size=1)
        loader.load_state_dict({"version": 1, "seed": 1, "epoch": 0, "position": position})
        with pytest.raises(ValueError, match=r"0\.") as raised:
            next(iter(loader))
        return str(raised.value)

    assert told(2) == told(2) != told(3)
