"""The elastic loader with iterable-style datasets: the same batches in the same order, also if workers are killed."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stream_datasets import (
    Buffered,
    Changing,
    Deadly,
    Failing,
    FailingLater,
    Interrupted,
    Noisy,
    NotBegun,
    Numbers,
    Remembering,
    Restarting,
    Unloadable,
    Unseeded,
)

from torchloader import ElasticDataLoader, LoadingError

LENGTH, STREAMS = 100, 3


def loader_of(dataset: Any, batch_size: int | None = 4, **options: Any) -> ElasticDataLoader:
    return ElasticDataLoader(dataset, batch_size, **{"collate_fn": list, "seed": 1, **options})


def streamed(dataset: Any, batch_size: int | None = 4, **options: Any) -> ElasticDataLoader:
    return loader_of(dataset, batch_size, **{"streams": STREAMS, **options})


UNDISTURBED = list(streamed(Noisy(LENGTH)))


def begin(loader: ElasticDataLoader, count: int) -> tuple[list[Any], Any]:
    """Return the first batches of a loader, and the state that it has then, after JSON and back."""
    batches = iter(loader)
    return [next(batches) for _ in range(count)], json.loads(json.dumps(loader.state_dict()))


def test_batches_come_from_the_streams_in_turn_and_ended_streams_are_skipped() -> None:
    class Unequal(Numbers):
        def __iter__(self) -> Iterator[Any]:
            stream = next(super().__iter__())
            return iter([f"{stream}{letter}" for letter in "abcd"[: 4 if stream == 1 else stream]])

    assert list(streamed(Numbers(14), 2)) == [[0, 3], [1, 4], [2, 5], [6, 9], [7, 10], [8, 11], [12], [13]]
    assert list(streamed(Unequal(3), 1)) == [["1a"], ["2a"], ["1b"], ["2b"], ["1c"], ["1d"]]
    assert loader_of(Numbers(4), num_workers=3).streams == 3
    assert streamed(Numbers(4), num_workers="auto").streams == STREAMS
    assert loader_of(range(4)).streams is None


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_streams_stay_with_their_workers(workers: int) -> None:
    """If streams moved as the workers start, a dataset with an inexact state would lose what it has read ahead."""
    with streamed(Unloadable(LENGTH), num_workers=workers) as loader:
        assert list(loader) == UNDISTURBED


@pytest.mark.parametrize("kind", [Buffered, Unloadable])
@pytest.mark.parametrize("streams", [0, 4])
def test_an_inexact_state_is_noticed_and_not_used(kind: type[Noisy], streams: int) -> None:
    whole = list(loader_of(kind(LENGTH), 3, streams=streams))
    begun, state = begin(loader_of(kind(LENGTH), 3, streams=streams), 6)
    second = loader_of(kind(LENGTH), 3, streams=streams)
    second.load_state_dict(state)
    with pytest.warns(RuntimeWarning, match=f"{kind.__name__} does not continue from its state_dict"):
        assert begun + list(second) == whole


def test_a_dataset_whose_samples_always_differ_continues_from_its_state(tmp_path: Path) -> None:
    file = tmp_path / "read"
    first, second = (streamed(Unseeded(96, str(file))) for _ in range(2))
    begun, state = begin(first, 18)
    second.load_state_dict(state)
    assert sorted(number for batch in begun + list(second) for number, _ in batch) == list(range(96))
    # The last batch of each stream is read three more times, and none before it.
    assert len(file.read_text().split()) == 96 + 3 * 3 * 4


@pytest.mark.parametrize(("begun_batches", "options"), [(7, {}), (9, {"snapshot_every_n_steps": 2})])
def test_a_dataset_with_a_state_is_not_read_again(tmp_path: Path, begun_batches: int, options: dict[str, Any]) -> None:
    file = tmp_path / "read"
    first, second = (streamed(Remembering(48, str(file)), **options) for _ in range(2))
    begun, state = begin(first, begun_batches)
    second.load_state_dict(state)
    assert begun + list(second) == list(streamed(Noisy(48)))
    # Only the last batch of each stream, to see whether the dataset continues as before, or since its last snapshot.
    read = Counter(map(int, file.read_text().split()))
    assert sorted(read) == list(range(48))
    assert sum(read.values()) == 48 + 3 * 4


def test_a_loaded_state_keeps_its_number_of_streams_for_its_epoch_only() -> None:
    first, second = loader_of(Numbers(24), 2, streams=3), loader_of(Numbers(24), 2, streams=2)
    whole = list(first)
    first.set_epoch(0)
    begun, state = begin(first, 4)
    second.load_state_dict(state)
    assert begun + list(second) == whole
    assert list(second) == list(loader_of(Numbers(24), 2, streams=2))


@pytest.mark.parametrize(
    ("options", "damage", "told"),
    [
        ({"batch_size": 5}, {}, "batch_size=4, this one has batch_size=5"),
        ({"rank": 1, "world_size": 2}, {}, "rank=0, this one has rank=1"),
        ({"streams": 0}, {}, "shared=True, this one has shared=False"),
        ({}, {"streams": []}, "not the state of an ElasticDataLoader"),
        ({}, {"turn": 3}, "not the state of an ElasticDataLoader"),
    ],
)
def test_a_state_of_other_streams_is_refused(options: dict[str, Any], damage: dict[str, Any], told: str) -> None:
    _, state = begin(streamed(Numbers(24)), 1)
    with pytest.raises(ValueError, match=told):
        streamed(Numbers(24), **options).load_state_dict({**state, "position": {**state["position"], **damage}})


def test_a_state_of_another_style_of_dataset_is_refused() -> None:
    for one, other in ((streamed(Numbers(24)), loader_of(range(24))), (loader_of(range(24)), streamed(Numbers(24)))):
        with pytest.raises(ValueError, match="another style of dataset"):
            other.load_state_dict(begin(one, 1)[1])


def test_each_epoch_and_each_stream_has_different_reproducible_random_numbers() -> None:
    loader = streamed(Noisy(LENGTH))
    first, second = list(loader), list(loader)
    assert [[number for number, *_ in batch] for batch in first] == [
        [number for number, *_ in batch] for batch in second
    ]
    drawn = [luck for batch in first + second for _, luck, _ in batch]
    assert len(set(drawn)) == len(drawn)
    loader.set_epoch(0)
    assert list(loader) == first


def test_each_stream_has_its_own_copy_of_the_dataset_of_the_beginning_of_the_epoch() -> None:
    dataset = Changing(60)
    with streamed(dataset, num_workers=1) as loader:
        batches = iter(loader)
        given = [next(batches)]
        dataset.content = 1
        loader.resize(3)
        given += batches
        assert {sample[1:] for batch in given for sample in batch} == {(0, 1)}
        assert {sample[1:] for batch in loader for sample in batch} == {(1, 1)}


def test_a_loader_without_workers_and_streams_reads_the_dataset_itself() -> None:
    dataset = Changing(8)
    assert list(loader_of(dataset)) == [[(number, 0, 1) for number in part] for part in (range(4), range(4, 8))]
    assert dataset.reads == 1


def test_workers_added_to_an_epoch_without_workers_begin_with_the_next_one() -> None:
    with loader_of(Noisy(40)) as loader:
        batches = iter(loader)
        begun = [next(batches)]
        loader.resize(1)
        whole = begun + list(batches)
        loader.set_epoch(0)
        again = iter(loader)
        assert [next(again)] == begun
        assert loader.counters.workers == 1
        assert [*begun, *again] == whole


def given(batches: Iterator[Any]) -> list[Any]:
    """Return the batches, and the texts of errors in their places."""
    taken: list[Any] = []
    while True:
        try:
            taken.append(next(batches))
        except OSError as error:
            taken.append(error.strerror)
        except StopIteration:
            return taken


@pytest.mark.parametrize("workers", [0, 1])
def test_an_exception_of_the_dataset_is_raised_in_place_of_its_batch(workers: int) -> None:
    with streamed(Failing(24), 2, num_workers=workers) as loader:
        taken = given(iter(loader))
    assert taken[:6] == [[0, 3], [1, 4], [2, 5], [6, 9], "the disk is gone", [8, 11]]
    assert taken[6:] == [[12, 15], [10, 13], [14, 17], [18, 21], [16, 19], [20, 23], [22]]
    with streamed(NotBegun(6), 2, num_workers=workers) as loader:  # a stream that cannot begin ends
        assert given(iter(loader)) == [[0, 3], "no such shard", [2, 5]]


def test_a_dataset_that_cannot_be_read_again_is_an_error(tmp_path: Path) -> None:
    _, state = begin(streamed(Numbers(48)), 9)
    second = streamed(Numbers(12))
    second.load_state_dict(state)
    with pytest.raises(RuntimeError, match="other samples when it is read again: it ended at batch 1 of stream 0"):
        next(iter(second))
    second = streamed(FailingLater(48, str(tmp_path / "gone")))
    _, state = begin(second, 9)
    (tmp_path / "gone").touch()
    second.load_state_dict(state)
    with pytest.raises(OSError, match="the disk is gone") as raised:
        next(iter(second))
    assert raised.value.__notes__ == ["stream 0 could not be begun at batch 3 and ends here"]


def test_a_stream_with_an_earlier_error_can_be_continued() -> None:
    first, second = streamed(Failing(60), 2), streamed(Failing(60), 2)
    batches = iter(first)
    for _ in range(4):
        next(batches)
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    begun = [next(batches) for _ in range(6)]
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert begun[-1] == [16, 19]
    assert list(second) == list(batches)


def test_an_interrupt_loses_no_sample() -> None:
    batches = iter(streamed(Interrupted(40)))
    taken = [next(batches) for _ in range(5)]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert taken + list(batches) == list(streamed(Numbers(40)))


def test_the_error_names_the_batch_that_ends_its_workers() -> None:
    with streamed(Deadly(60), num_workers=1) as loader, pytest.raises(LoadingError, match="of batch 0 of stream 1"):
        list(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_share_the_streams(workers: int) -> None:
    samples: list[int] = []
    for rank in range(2):
        with loader_of(Numbers(40), 3, rank=rank, world_size=2, num_workers=workers) as loader:
            samples += [sample for batch in loader for sample in batch]
    assert sorted(samples) == list(range(40))


def test_a_copy_of_a_loader_has_its_position() -> None:
    loader = streamed(Noisy(LENGTH))
    begun, state = begin(loader, 5)
    loader.load_state_dict(state)
    assert begun + list(pickle.loads(pickle.dumps(loader))) == UNDISTURBED


def test_auto_uses_at_most_one_worker_for_each_stream() -> None:
    with streamed(Noisy(LENGTH), num_workers="auto") as loader:
        assert list(loader) == UNDISTURBED
        assert 1 <= loader.workers <= STREAMS


@pytest.mark.parametrize(
    ("dataset", "options", "told"),
    [
        (Numbers(4), {"shuffle": True}, "decides the order itself: give it without shuffle=True"),
        (Numbers(4), {"sampler": range(3)}, "give it without sampler"),
        (Numbers(4), {"batch_size": 1, "batch_sampler": [[1]]}, "give it without batch_sampler"),
        (Numbers(4), {"batch_size": None, "drop_last": True}, "no last one to drop"),
        (Numbers(4), {"num_workers": "auto"}, 'num_workers="auto" needs streams='),
        (Numbers(4), {"streams": -1}, "streams must be at least 0"),
        (range(4), {"streams": 2}, "streams and snapshot_every_n_steps are for iterable-style datasets"),
    ],
)
def test_incompatible_options_are_errors(dataset: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        loader_of(dataset, **options)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("streams", [0, 2])
def test_epochs_after_a_resumed_one_are_whole(workers: int, streams: int) -> None:
    first = loader_of(Restarting(24), streams=streams)
    undisturbed = [list(first) for _ in range(3)]
    begun, state = begin(loader_of(Restarting(24), streams=streams), 3)
    with loader_of(Restarting(24), streams=streams, num_workers=workers) as resumed:
        resumed.load_state_dict(state)
        assert [begun + list(resumed), list(resumed), list(resumed)] == undisturbed


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_after_a_resumed_one_of_hugging_face_are_whole(workers: int) -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"number": list(range(24))}).to_iterable_dataset(num_shards=4)
    streams = {"streams": workers, "num_workers": workers}
    with loader_of(dataset, **streams) as loader:
        begun, state = begin(loader, 3)
    with loader_of(dataset, **streams) as resumed:
        resumed.load_state_dict(state)
        epochs = [begun + list(resumed), list(resumed), list(resumed)]
    assert [sorted(sample["number"] for batch in epoch for sample in batch) for epoch in epochs] == [[*range(24)]] * 3
