"""Random numbers in a dataset: they depend on seed, epoch and index, and do not repeat."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loader_datasets import pid_of

from torchloader import ElasticDataLoader, sample_seed
from torchloader.streaming import shard

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
        return [draw() for draw in DRAWS for _ in range(3)]  # of normal numbers two are made at once

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


def test_samples_are_read_once() -> None:
    dataset = Drawing([0, 1, 3, 5] * 3)
    list(loader_of(dataset))
    assert dataset.read == [1] * 12


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


class Ways:
    """Samples that draw in each of the ways that programs use, and the generators that are kept between samples."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, float]:
        info = torch.utils.data.get_worker_info()
        told = torch.initial_seed() if info is None else info.seed
        for name, seed in {"initial_seed": torch.initial_seed(), "info.seed": told, "system": None}.items():
            self.kept.setdefault(f"first sample, {name}", np.random.default_rng(seed))
        self.kept.setdefault("first sample, torch", torch.Generator().manual_seed(torch.initial_seed()))
        draws = {
            "random": random.random(),
            "numpy": float(np.random.rand()),
            "torch": float(torch.rand(())),
            "sample, initial_seed": np.random.default_rng((torch.initial_seed(), index)).random(),
            "sample, info.seed": np.random.default_rng((told, index)).random(),
        }
        for name, generator in self.kept.items():
            drawn = torch.rand((), generator=generator) if name.endswith("torch") else generator.random()
            draws[name] = float(drawn)
        return draws


def keep_generators(worker: int) -> None:
    info = torch.utils.data.get_worker_info()
    info.dataset.kept["worker_init_fn, initial_seed"] = np.random.default_rng(torch.initial_seed())
    info.dataset.kept["worker_init_fn, info.seed"] = np.random.default_rng(info.seed)


REPRODUCED = {"random", "numpy", "torch", "sample, initial_seed", "sample, info.seed"}


def drawn_by(loaders: list[Any]) -> dict[str, list[float]]:
    """Return the numbers that each way has drawn, in an epoch of each loader."""
    samples = [sample for loader in loaders for batch in loader for sample in batch]
    return {way: [sample[way] for sample in samples] for way in samples[0]}


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize(
    ("workers", "context", "persistent"),
    [(0, None, False), (1, "fork", True), (3, "fork", False), (2, "spawn", False), (2, "spawn", True)],
)
def test_no_way_of_drawing_repeats_more_numbers_than_with_pytorch(
    workers: int, context: str | None, persistent: bool
) -> None:
    options: dict[str, Any] = {"batch_size": 2, "collate_fn": list, "shuffle": True}
    if workers:
        options |= {"num_workers": workers, "worker_init_fn": keep_generators, "persistent_workers": persistent}
    theirs = torch.utils.data.DataLoader(Ways(), **options, multiprocessing_context="fork" if workers else None)
    expected = drawn_by([theirs] * 3)
    with ElasticDataLoader(Ways(), **options, multiprocessing_context=context, seed=3) as loader:
        drawn = drawn_by([loader] * 3)
    assert drawn.keys() == expected.keys()
    assert {way: len(set(drawn[way])) for way in drawn if len(set(drawn[way])) < len(set(expected[way]))} == {}
    alone = drawn_by([ElasticDataLoader(Ways(), 2, shuffle=True, collate_fn=list, seed=3)])
    for way in REPRODUCED:
        assert len(set(drawn[way])) == 24
        if workers or "info" not in way:
            assert drawn[way][:8] == alone[way]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_epoch_draws_the_same_numbers_and_repeats_none(workers: int) -> None:
    def loader() -> ElasticDataLoader:
        options = {"num_workers": workers, "worker_init_fn": keep_generators} if workers else {}
        return ElasticDataLoader(Ways(), 2, collate_fn=list, seed=3, **options)

    whole = drawn_by([loader()])
    begun = loader()
    batches = iter(begun)
    given = [next(batches) for _ in range(2)]
    resumed = loader()
    resumed.load_state_dict(begun.state_dict())
    drawn = drawn_by([given, resumed])
    begun.close()
    resumed.close()
    for way, numbers in drawn.items():
        if way in REPRODUCED:
            assert numbers == whole[way]
        assert not set(numbers[:4]) & set(numbers[4:])


def test_a_worker_that_replaces_another_repeats_none_of_its_numbers() -> None:
    options: dict[str, Any] = {"num_workers": 1, "worker_init_fn": keep_generators, "multiprocessing_context": "fork"}
    with ElasticDataLoader(Ways(), 1, collate_fn=list, prefetch_factor=1, **options) as loader:
        batches = iter(loader)
        before = drawn_by([[next(batches), next(batches)]])
        os.kill(pid_of(next(each.process for each in loader._crew._workers.values())), signal.SIGKILL)
        after = drawn_by([batches])
    for way in before:
        assert not set(before[way]) & set(after[way])


def test_an_index_that_a_sampler_gives_again_has_other_random_numbers() -> None:
    sampler = [0, 0, 1, 0, 1, 0]
    loaders = [loader_of(Drawing([1] * 2), sampler=sampler, num_workers=workers) for workers in (0, 2)]
    alone, given = [[number for batch in loader for _, number in batch] for loader in loaders]
    assert len(set(alone)) == 6
    assert alone == given
    loaders[1].close()


def test_keys_with_the_same_beginning_have_their_own_random_numbers() -> None:
    keys = [f"photographs/{number}.jpg" for number in range(6)]
    loader = loader_of(dict.fromkeys(keys, None), sampler=keys, batch_size=1, collate_fn=lambda _: random.random())
    assert len(set(loader)) == 6


class Rolling:
    """Samples with a number of their own generator, map-style or in streams."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, random.Random(sample_seed(index)).random()


class RollingStream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return (Rolling()[index] for index in shard(range(24)))


def test_the_seed_of_a_sample_depends_on_seed_epoch_and_index_alone() -> None:
    options: list[tuple[Any, dict[str, Any]]] = [
        (Rolling(), {"batch_size": 5}),
        (Rolling(), {"batch_size": 4, "shuffle": True, "num_workers": 2}),
        (RollingStream(), {"batch_size": 2, "streams": 3}),
    ]
    loaders = [loader_of(dataset, **each) for dataset, each in options]
    epochs = [[sorted(chain.from_iterable(loader)) for loader in loaders] for _ in range(2)]
    for loader in loaders:
        loader.close()
    first, second = (epoch[0] for epoch in epochs)
    assert epochs == [[first] * 3, [second] * 3]
    other = sorted(chain.from_iterable(loader_of(Rolling(), seed=2)))
    assert len({number for _, number in first + second + other}) == 3 * 24
    with pytest.raises(RuntimeError, match="while an ElasticDataLoader makes a batch"):
        sample_seed(0)
