"""Loaders with in_order=False: batches are given when they are ready, the same ones, none lost or repeated."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_datasets import Deadly, Failing, Noisy

from torchloader import ElasticDataLoader, LoadingError, elastic
from torchloader.streaming import shard

LENGTH = 80


def wait_for(gate: str) -> None:
    """Wait until there is a file with this name."""
    deadline = time.monotonic() + 60
    while not Path(gate).exists():
        assert time.monotonic() < deadline
        time.sleep(0.002)


class Gated(Noisy):
    """Samples of which some wait until a file exists."""

    def __init__(self, length: int, gate: Path, slow: tuple[int, ...] = (0,)) -> None:
        super().__init__(length)
        self.gate, self.slow = str(gate), slow

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        if index in self.slow:
            wait_for(self.gate)
        return super().__getitem__(index)


class GatedStreams:
    """Numbers of two streams, of which the first one waits while a file exists."""

    def __init__(self, length: int, barrier: Path) -> None:
        self.length, self.barrier = length, barrier

    def __iter__(self) -> Iterator[int]:
        for number in shard(range(self.length)):
            while number % 2 == 0 and self.barrier.exists():
                time.sleep(0.002)
            yield number


# For tests in which workers must start soon, or get a local class: from Python 3.14 on they are not forked by default.
FORKED = {"multiprocessing_context": "fork"}


def loader_of(dataset: Any, batch_size: int | None = 4, **options: Any) -> ElasticDataLoader:
    given = {"collate_fn": list, "seed": 1, "in_order": False, "timeout": 60, **options}
    return ElasticDataLoader(dataset, batch_size, **given)


def indices_of(batches: list[Any]) -> list[int]:
    return sorted(index for batch in batches for index, *_ in batch)


IN_ORDER = list(loader_of(Noisy(LENGTH), shuffle=True, in_order=True))


def take(batches: Iterator[Any], count: int) -> list[Any]:
    return [next(batches) for _ in range(count)]


def state_of(loader: ElasticDataLoader) -> Any:
    """Return the state of the loader after a conversion to JSON and back."""
    return json.loads(json.dumps(loader.state_dict()))


# With a factor of 3 some batches wait in the worker of the slow one.
@pytest.mark.parametrize(("workers", "prefetch_factor", "ready"), [(2, 1, 19), (3, 1, 19), (2, 3, 5)])
def test_a_slow_batch_does_not_delay_others_and_no_more_are_prefetched(
    tmp_path: Path, workers: int, prefetch_factor: int, ready: int
) -> None:
    dataset = Gated(LENGTH, tmp_path / "gate")
    with loader_of(dataset, num_workers=workers, prefetch_factor=prefetch_factor) as loader:
        batches, given = iter(loader), []
        for _ in range(ready):
            given.append(next(batches)[0][0])
            assert loader.counters.depth <= workers * prefetch_factor == loader._crew.window
        assert 0 not in given
        (tmp_path / "gate").touch()
        assert sorted(given + [batch[0][0] for batch in batches]) == list(range(0, LENGTH, 4))
        assert state_of(loader) == {"version": 1, "seed": 1, "epoch": 1, "position": 0}


def test_without_workers_batches_are_in_order() -> None:
    assert list(loader_of(Noisy(LENGTH), shuffle=True)) == IN_ORDER


@pytest.mark.parametrize("in_order", [True, False])
def test_a_state_with_gaps_continues_with_exactly_the_missing_batches(tmp_path: Path, in_order: bool) -> None:
    dataset = Gated(LENGTH, tmp_path / "gate", slow=(0, 21))
    with loader_of(dataset, num_workers=3, prefetch_factor=1) as loader:
        given = take(iter(loader), 9)
        state = state_of(loader)
        assert (state["position"], state["beyond"]["given"]) == (0, [[4, 20], [24, 44]])
        (tmp_path / "gate").touch()
    with loader_of(dataset, num_workers=1, in_order=in_order) as second:
        second.load_state_dict(state)
        given += take(iter(second), 1)
        again = state_of(second)
    third = loader_of(dataset)
    third.load_state_dict(again)
    assert indices_of(given + list(third)) == list(range(LENGTH))
    assert len(list(third)) == LENGTH // 4  # the epoch after it is whole


def test_more_ranks_with_the_same_global_batch_can_continue_a_state_with_gaps(tmp_path: Path) -> None:
    dataset = Gated(LENGTH, tmp_path / "gate")
    with loader_of(dataset, num_workers=2) as loader:
        given = take(iter(loader), 5)
        state = state_of(loader)
        (tmp_path / "gate").touch()
    for rank in range(2):
        part = loader_of(dataset, 2, rank=rank, world_size=2)
        part.load_state_dict(state)
        given += list(part)
    assert indices_of(given) == list(range(LENGTH))
    with pytest.raises(ValueError, match=r"batches of 4 samples that were given out of turn .* makes batches of 8"):
        loader_of(dataset, 8).load_state_dict(state)


def test_each_rank_continues_from_its_own_state(tmp_path: Path) -> None:
    dataset, states, given = Gated(LENGTH, tmp_path / "gate"), [], []
    for rank in range(2):
        with loader_of(dataset, num_workers=2, rank=rank, world_size=2) as loader:
            batches = iter(loader)
            given += take(batches, 4)
            while rank == 1 and state_of(loader)["position"] == 0:  # a worker was late
                given += take(batches, 1)
            states.append(state_of(loader))
    (tmp_path / "gate").touch()
    assert states[0]["position"] == 0 < states[1]["position"]  # the slow sample is the first rank's
    for rank, state in enumerate(states):
        loader = loader_of(dataset, rank=rank, world_size=2)
        loader.load_state_dict(state)
        given += list(loader)
    assert indices_of(given) == list(range(LENGTH))
    for rank, world_size in ((0, 2), (0, 3), (0, 1)):
        with pytest.raises(ValueError, match=f"the state is of rank 1 of 2, .* rank {rank} of {world_size}: save the"):
            loader_of(dataset, rank=rank, world_size=world_size).load_state_dict(states[1])


class Drawn:
    """A sampler with a new random order in each epoch."""

    def __iter__(self) -> Iterator[int]:
        import random

        yield from random.sample(range(LENGTH), LENGTH)


def test_an_epoch_of_a_sampler_can_be_continued_with_gaps(tmp_path: Path) -> None:
    first = next(iter(loader_of(Noisy(LENGTH), sampler=Drawn())))[2][0]
    dataset = Gated(LENGTH, tmp_path / "gate", slow=(first,))
    with loader_of(dataset, sampler=Drawn(), num_workers=2) as loader:
        batches = iter(loader)
        given = take(batches, 6)
        states = [state_of(loader)]
        (tmp_path / "gate").touch()
        more = take(batches, 8)
        states.append(state_of(loader))
    for state, before in zip(states, (given, given + more), strict=True):
        second = loader_of(dataset, sampler=Drawn())
        second.load_state_dict(state)
        assert indices_of(before + list(second)) == list(range(LENGTH))


def test_an_error_is_raised_once_and_the_other_batches_are_given() -> None:
    with loader_of(Failing(20), num_workers=2) as loader:
        batches, given, raised = iter(loader), [], 0
        while len(given) + raised < 5:
            try:
                given.append(next(batches)[0][0])
            except OSError:
                raised += 1
        assert (sorted(given), raised, list(batches)) == ([0, 8, 12, 16], 1, [])
    with loader_of(Deadly(LENGTH), num_workers=2) as loader, pytest.raises(LoadingError, match="ended over one batch"):
        list(loader)


def test_a_batch_that_is_not_made_in_time_is_a_timeout_error(tmp_path: Path) -> None:
    dataset = Gated(12, tmp_path / "gate")
    with loader_of(dataset, num_workers=2, prefetch_factor=1, timeout=5.0, **FORKED) as loader:
        batches = iter(loader)
        assert len(take(batches, 2)) == 2
        with pytest.raises(TimeoutError, match=r"no batch in 5.0 s"):
            next(batches)
        (tmp_path / "gate").touch()


def test_auto_works_with_batches_out_of_order() -> None:
    with loader_of(Noisy(LENGTH), shuffle=True, num_workers="auto", max_workers=3) as loader:
        assert sorted(loader) == sorted(IN_ORDER)


def test_a_trainer_waits_only_while_no_batch_is_ready(tmp_path: Path) -> None:
    dataset = Gated(LENGTH, tmp_path / "gate")
    with loader_of(dataset, num_workers=2, prefetch_factor=1) as loader:
        batches = iter(loader)
        next(batches)
        waited, deadline = loader.counters.waited, time.monotonic() + 60
        while not loader.counters.depth:
            assert time.monotonic() < deadline
        next(batches)  # the slow one is not made
        assert loader.counters.waited == waited
        (tmp_path / "gate").touch()


def test_streams_overtake_each_other_and_each_one_is_in_order(tmp_path: Path) -> None:
    barrier = tmp_path / "barrier"
    with loader_of(GatedStreams(400, barrier), 2, num_workers=2, **FORKED) as loader:
        batches, given = iter(loader), []
        while loader.counters.workers < 2:
            given += take(batches, 1)
        given += take(batches, 8)  # each worker has a stream now
        barrier.touch()
        given += take(batches, 30)
        assert all(number % 2 for batch in given[-20:] for number in batch)
        barrier.unlink()
        given += list(batches)
    for stream in range(2):
        assert [number for batch in given for number in batch if number % 2 == stream] == list(range(stream, 400, 2))


class Told:
    """Samples that are their index, of which some are slow."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        time.sleep(0.003 * (index % 5 == 0))
        return index


@settings(max_examples=4)
@given(length=st.integers(1, 30), batch_size=st.integers(1, 4), drop_last=st.booleans(), workers=st.integers(0, 2))
def test_the_set_of_batches_is_that_of_pytorch(length: int, batch_size: int, drop_last: bool, workers: int) -> None:
    data = pytest.importorskip("torch.utils.data")
    options = {"batch_size": batch_size, "drop_last": drop_last, "num_workers": workers, "in_order": False}
    theirs = data.DataLoader(Told(length), **options)
    with elastic(theirs) as ours:
        assert not ours.in_order
        assert sorted(batch.tolist() for batch in ours) == sorted(batch.tolist() for batch in theirs)


def test_the_set_of_batches_of_streams_is_that_of_pytorch() -> None:
    data = pytest.importorskip("torch.utils.data")

    class Parts(data.IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            yield from shard(range(23))

    theirs = data.DataLoader(Parts(), 3, num_workers=2, in_order=False, **FORKED)
    with elastic(theirs) as ours:
        assert sorted(batch.tolist() for batch in ours) == sorted(batch.tolist() for batch in theirs)
