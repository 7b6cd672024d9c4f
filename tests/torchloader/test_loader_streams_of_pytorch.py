"""Iterable-style datasets written for PyTorch: the batches are those of the loaders of PyTorch and torchdata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchloader import ElasticDataLoader, elastic

data = pytest.importorskip("torch.utils.data")
torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata 0.11 with PyTorch 2.13
]

OPTIONS = st.fixed_dictionaries({"batch_size": st.integers(1, 5), "drop_last": st.booleans()}) | st.just(
    {"batch_size": None}
)


class Parts(data.IterableDataset):  # type: ignore[misc]
    """A given number of samples for each worker, and for a trainer without workers."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __iter__(self) -> Iterator[Any]:
        info = data.get_worker_info()
        worker, workers = (-1, 0) if info is None else (info.id, info.num_workers)
        for number in range(self.lengths[worker]):
            yield torch.tensor([worker, workers, number])


class Bounded(data.IterableDataset):  # type: ignore[misc]
    """A range of which worker_init_fn selects a part."""

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))


class Kept(data.IterableDataset):  # type: ignore[misc]
    """A part of a range for each worker, with the protocol Stateful."""

    def __init__(self, length: int) -> None:
        self.length, self.given = length, 0

    def __iter__(self) -> Iterator[int]:
        info = data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        part = range(worker, self.length, workers)
        while self.given < len(part):
            self.given += 1
            yield part[self.given - 1]
        self.given = 0

    def state_dict(self) -> dict[str, int]:
        return {"given": self.given}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.given = state["given"]


class Sized(Bounded):
    def __len__(self) -> int:
        return 2


def choose_part(worker: int) -> None:
    info = data.get_worker_info()
    start, end = info.dataset.start, info.dataset.end
    each = -(-(end - start) // info.num_workers)
    info.dataset.start, info.dataset.end = start + worker * each, min(end, start + (worker + 1) * each)


def listed(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


@settings(max_examples=8)
@given(lengths=st.lists(st.integers(0, 9), min_size=0, max_size=3), options=OPTIONS)
def test_batches_without_workers_are_those_of_pytorch(lengths: list[int], options: dict[str, Any]) -> None:
    dataset, workers = Parts(lengths or [7]), len(lengths)
    expected = listed(data.DataLoader(dataset, num_workers=workers, **options))
    assert listed(ElasticDataLoader(dataset, streams=workers, **options)) == expected


def test_batches_of_workers_are_those_of_pytorch() -> None:
    options = {"num_workers": 2, "batch_size": 3, "worker_init_fn": choose_part}
    theirs = data.DataLoader(Bounded(0, 20), **options)
    with ElasticDataLoader(Bounded(0, 20), **options) as ours:
        for _ in range(2):
            assert listed(ours) == listed(theirs)


def test_elastic_preserves_the_batches() -> None:
    theirs = data.DataLoader(Bounded(0, 20), num_workers=2, batch_size=3, worker_init_fn=choose_part)
    ours = elastic(theirs, num_workers=0)
    assert ours.streams == 2
    assert listed(ours) == listed(theirs)


def test_a_loader_has_the_samplers_of_pytorch() -> None:
    theirs, ours = data.DataLoader(Bounded(0, 5), 2), ElasticDataLoader(Bounded(0, 5), 2)
    assert type(ours.sampler) is type(theirs.sampler)
    assert type(ours.batch_sampler) is type(theirs.batch_sampler)


def test_the_length_and_its_warning_are_those_of_pytorch() -> None:
    theirs, ours = data.DataLoader(Sized(0, 5)), ElasticDataLoader(Sized(0, 5))
    assert len(ours) == len(theirs) == 2
    for loader in (theirs, ours):
        with pytest.warns(UserWarning, match="was .*2"):
            list(loader)
    with pytest.raises(TypeError):
        len(ElasticDataLoader(Bounded(0, 5)))


@pytest.mark.parametrize("taken", [1, 4, 9])
def test_a_state_continues_like_that_of_torchdata(taken: int) -> None:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    rests = []
    for make in (
        lambda: torchdata.StatefulDataLoader(Kept(50), 4, num_workers=2),
        lambda: ElasticDataLoader(Kept(50), 4, streams=2),
    ):
        first, second = make(), make()
        batches = iter(first)
        for _ in range(taken):
            next(batches)
        second.load_state_dict(first.state_dict())
        rests.append(listed(second))
    assert rests[0] == rests[1]


@pytest.mark.parametrize("refused", [{"shuffle": True}, {"sampler": [0]}, {"batch_sampler": [[0]]}])
def test_arguments_that_pytorch_refuses_are_refused(refused: dict[str, Any]) -> None:
    for kind in (data.DataLoader, ElasticDataLoader):
        with pytest.raises(ValueError, match="terable"):
            kind(Bounded(0, 5), **refused)
