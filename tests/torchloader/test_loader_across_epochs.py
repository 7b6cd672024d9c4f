"""Workers that begin with the next epoch before its iter(), with prefetch_epochs=True: the batches are the same."""

from __future__ import annotations

import os
import signal
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from loader_datasets import Changing, Noisy, pid_of

from torchloader import ElasticDataLoader

LENGTH = 60


def loader_of(dataset: Any, **options: Any) -> ElasticDataLoader:
    ahead = {"persistent_workers": True, "prefetch_epochs": True, "multiprocessing_context": "fork", "seed": 1}
    return ElasticDataLoader(dataset, 4, shuffle=True, collate_fn=list, **{"num_workers": 2, **ahead, **options})


ALONE = ElasticDataLoader(Noisy(LENGTH), 4, shuffle=True, seed=1, collate_fn=list)
EPOCHS = [list(ALONE) for _ in range(6)]


def wait_for(batches: int, loader: ElasticDataLoader) -> None:
    """Wait until this number of batches is ready."""
    deadline = time.monotonic() + 20
    while loader.counters.depth < batches and time.monotonic() < deadline:
        time.sleep(0.001)
    assert loader.counters.depth >= batches


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_batches_of_the_next_epoch_are_made_before_its_iter(context: str) -> None:
    with loader_of(Noisy(LENGTH), multiprocessing_context=context) as loader:
        while loader._crew.ready < 2:  # what is made ahead is for the workers that are ready
            assert list(loader) == EPOCHS[0]
            loader.set_epoch(0)
        for epoch in range(4):
            assert list(loader) == EPOCHS[epoch]
            wait_for(4, loader)
            assert loader.state_dict()["epoch"] == epoch + 1


def test_no_batches_of_the_next_epoch_are_made_without_prefetch_epochs() -> None:
    with loader_of(Noisy(LENGTH), prefetch_epochs=False) as loader:
        assert list(loader) == EPOCHS[0]
        assert loader._crew._live == set()


def kill_one(loader: ElasticDataLoader) -> None:
    workers = loader._crew._workers.values()
    os.kill(pid_of(next(each.process for each in workers if each.ready and each.process)), signal.SIGKILL)


@pytest.mark.parametrize(
    ("between", "following"),
    [
        (lambda loader: loader.set_epoch(5), EPOCHS[5]),
        (lambda loader: loader.set_epoch(0), EPOCHS[0]),
        (lambda loader: loader.resize(0), EPOCHS[1]),
        (lambda loader: loader.resize(4), EPOCHS[1]),
        (kill_one, EPOCHS[1]),
        (lambda loader: next(iter(loader)), EPOCHS[2]),
        (lambda loader: [iter(loader) for _ in range(3)], EPOCHS[4]),
        (
            lambda loader: loader.load_state_dict({"version": 1, "seed": 1, "epoch": 1, "position": 40}),
            EPOCHS[1][10:],
        ),
    ],
    ids=["set_epoch", "again", "no workers", "more workers", "kill", "a look", "looks", "state"],
)
def test_the_next_epoch_is_exact_after_any_operation_between_epochs(
    between: Callable[[ElasticDataLoader], Any], following: Any
) -> None:
    with loader_of(Noisy(LENGTH)) as loader:
        assert list(loader) == EPOCHS[0]
        wait_for(4, loader)
        between(loader)
        assert list(loader) == following
        loader.set_epoch(3)
        assert list(loader) == EPOCHS[3]


def test_an_epoch_can_be_abandoned_near_its_end() -> None:
    with loader_of(Noisy(LENGTH)) as loader:
        for epoch in range(3):
            batches = iter(loader)
            assert [next(batches) for _ in range(13)] == EPOCHS[epoch][:13]


def test_changes_of_a_pickled_dataset_are_in_the_next_epoch() -> None:
    dataset = Changing(LENGTH)
    with loader_of(dataset, multiprocessing_context="spawn") as loader:
        for dataset.content in range(3):
            assert {sample[1] for batch in loader for sample in batch} == {dataset.content}
        dataset.length = 2 * LENGTH
        assert len(list(loader)) == 30


def test_a_loaded_state_with_another_seed_is_used() -> None:
    with loader_of(Noisy(LENGTH), seed=None) as loader:
        list(loader)
        loader.load_state_dict({"version": 1, "seed": 1, "epoch": 1, "position": 0})
        assert list(loader) == EPOCHS[1]


def test_each_rank_has_its_part() -> None:
    place = {"rank": 1, "world_size": 2}
    alone = ElasticDataLoader(Noisy(LENGTH), 4, shuffle=True, seed=1, collate_fn=list, **place)
    with loader_of(Noisy(LENGTH), **place) as loader:
        for _ in range(3):
            assert list(loader) == list(alone)


def test_a_sampler_of_the_program_is_not_read_before_its_epoch() -> None:
    class Sampler:
        asked = 0

        def __iter__(self) -> Any:
            self.asked += 1
            return iter(range(8))

    sampler = Sampler()
    options = {"persistent_workers": True, "prefetch_epochs": True, "num_workers": 1, "collate_fn": list}
    with ElasticDataLoader(Noisy(8), 4, sampler=sampler, **options) as loader:
        list(loader)
        assert sampler.asked == 1


def test_an_unreferenced_loader_is_deleted_at_once() -> None:
    loader = loader_of(Noisy(LENGTH))
    list(loader)
    wait_for(4, loader)
    known = weakref.ref(loader)
    del loader
    assert known() is None


def test_prefetch_epochs_requires_persistent_workers() -> None:
    with pytest.raises(ValueError, match="prefetch_epochs needs persistent_workers=True"):
        loader_of(Noisy(LENGTH), persistent_workers=None)
    with pytest.raises(TypeError, match="prefetch_epochs must be True or False, not 2"):
        loader_of(Noisy(LENGTH), prefetch_epochs=2)
