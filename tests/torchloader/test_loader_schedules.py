"""Whatever becomes of the workers, and wherever an epoch is stopped and continued, the batches are those of a loader
without workers that is left alone."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
import stream_datasets
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loader_datasets import Noisy, kill_a_worker

from torchloader import ElasticDataLoader

LENGTH, BATCHES = 100, 26
STREAMS = {"streams": 3, "batch_size": 4}


class Drawn:
    """A sampler that draws random numbers."""

    def __iter__(self) -> Iterator[int]:
        return (random.randrange(LENGTH) for _ in range(LENGTH))


class Batches(Drawn):
    def __iter__(self) -> Iterator[Any]:
        return ([index, random.randrange(LENGTH)] for index in super().__iter__())


LOADS: dict[str, tuple[Any, dict[str, Any]]] = {
    "shuffled": (Noisy(LENGTH), {"batch_size": 4, "shuffle": True}),
    "shuffled, new processes": (Noisy(LENGTH), {"batch_size": 4, "shuffle": True, "multiprocessing_context": "spawn"}),
    "not in order": (Noisy(LENGTH), {"batch_size": 4, "shuffle": True, "in_order": False}),
    "whole batches": (Noisy(LENGTH), {"batch_size": 7, "drop_last": True}),
    "single samples": (Noisy(30), {"batch_size": None}),
    "sampler": (Noisy(LENGTH), {"batch_size": 4, "sampler": Drawn()}),
    "batch sampler": (Noisy(LENGTH), {"batch_sampler": Batches(), "in_order": False}),
    "streams": (stream_datasets.Noisy(LENGTH), STREAMS),
    "streams with states": (stream_datasets.StatefulIterator(LENGTH), STREAMS),
    "streams, not in order": (stream_datasets.StatefulDataset(LENGTH), {**STREAMS, "in_order": False}),
}
DEEDS = st.one_of(
    st.tuples(st.just("resize"), st.integers(0, 4)),
    st.tuples(st.just("kill"), st.integers(0, 3)),
    st.tuples(st.just("continue"), st.just(0)),
)


@pytest.fixture(scope="module", params=LOADS)
def loads(request: Any) -> Iterator[tuple[ElasticDataLoader, list[Any]]]:
    """A loader for many epochs, and its batches."""
    dataset, options = LOADS[request.param]
    options = {"collate_fn": list, "seed": 1, **options}
    alone = {**options, "in_order": True, "multiprocessing_context": None}
    with ElasticDataLoader(dataset, num_workers=2, **options) as loader:
        yield loader, list(ElasticDataLoader(dataset, **alone))


@pytest.mark.long
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=st.dictionaries(st.integers(0, BATCHES - 1), DEEDS, max_size=6))
def test_schedules_do_not_change_batches(
    loads: tuple[ElasticDataLoader, list[Any]], schedule: dict[int, tuple[str, int]]
) -> None:
    loader, expected = loads
    loader.set_epoch(0)
    batches: Iterator[Any] = iter(loader)
    taken: list[Any] = []
    while (batch := next(batches, None)) is not None:
        taken.append(batch)
        deed, value = schedule.get(len(taken) - 1, ("", 0))
        if deed == "resize":
            loader.resize(value)
        elif deed == "kill":
            kill_a_worker(loader, value)
        elif deed == "continue":
            loader.load_state_dict(json.loads(json.dumps(loader.state_dict())))
            batches = iter(loader)
    assert taken == expected if loader.in_order else sorted(taken) == sorted(expected)


def test_another_loader_continues_an_epoch(loads: tuple[ElasticDataLoader, list[Any]]) -> None:
    loader, expected = loads
    loader.resize(2)
    loader.set_epoch(0)
    batches = iter(loader)
    taken = [next(batches) for _ in range(11)]
    state = json.loads(json.dumps(loader.state_dict()))
    other = copy.copy(loader)
    other.resize(0)
    other.load_state_dict(state)
    taken += list(other)
    assert taken == expected if loader.in_order else sorted(taken) == sorted(expected)
    assert len(list(other)) == len(expected)  # the epoch after it is whole
