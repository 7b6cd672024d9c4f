"""The elastic loader: it gives the same batches with any number of workers, also if workers are killed."""

from __future__ import annotations

import inspect
import multiprocessing as mp
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loader_datasets import (
    Asking,
    ByKey,
    Changing,
    Counting,
    Deadly,
    DeadlyOnce,
    Failing,
    FailingInTwoArguments,
    Holding,
    HoldingUnrebuildable,
    Noisy,
    RunningDry,
    SlowToOpen,
    Unreadable,
    UnreadableInTwoArguments,
    be_slow,
    count_call,
    kill_a_worker,
)

from conftest import Site
from dragon.native.queue import Queue
from torchloader import ElasticDataLoader, LoadingError

Samples = list[tuple[int, float, float]]


def together(samples: Samples) -> Samples:
    """Return the samples of a batch unchanged, without PyTorch."""
    return samples


def loader_of(dataset: Any, batch_size: int | None = 4, **options: Any) -> ElasticDataLoader:
    return ElasticDataLoader(dataset, batch_size, **{"collate_fn": together, "seed": 1, **options})


def indices_of(batches: Any) -> list[list[int]]:
    return [[index for index, *_ in batch] for batch in batches]


def all_indices_of(batches: Any) -> list[int]:
    return [index for batch in batches for index, *_ in batch]


LENGTH = 120
UNDISTURBED = list(loader_of(Noisy(LENGTH), shuffle=True))


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        (SlowToOpen(40_000), {"multiprocessing_context": "spawn"}),
        (Noisy(40_000), {"multiprocessing_context": "fork", "worker_init_fn": be_slow}),
    ],
    ids=["spawn", "fork"],
)
def test_a_resize_does_not_wait_for_the_new_workers(dataset: Noisy, options: dict[str, Any]) -> None:
    with loader_of(dataset, num_workers=1, **options) as loader:
        loader.resize(0)
        batches = iter(loader)
        next(batches)
        loader.resize(2)
        for _ in range(20):
            next(batches)
        assert loader.counters.workers == 0  # they are opening the data set still


def test_existing_workers_begin_to_load_at_iter_and_the_depth_counts_their_batches() -> None:
    with loader_of(Noisy(LENGTH), num_workers=1, shuffle=True) as loader:
        assert list(loader) == UNDISTURBED
        loader.set_epoch(0)
        batches, depths = iter(loader), []
        deadline = time.monotonic() + 20
        while depths[-20:] != [2] * 20 and time.monotonic() < deadline:
            depths.append(loader.counters.depth)
            time.sleep(0.001)
        assert depths[-1] == max(depths) == 2
        assert list(batches) == UNDISTURBED


def test_an_exception_of_the_sampler_is_raised_for_the_first_batch() -> None:
    def broken() -> Iterator[int]:
        raise OSError("no samples")
        yield 0

    class Broken:
        def __iter__(self) -> Iterator[int]:
            return broken()

    with loader_of(Noisy(8), num_workers=1, sampler=Broken()) as loader:
        batches = iter(loader)
        with pytest.raises(OSError, match="no samples"):
            next(batches)


def test_resize_ends_surplus_workers() -> None:
    with loader_of(Noisy(40_000, latency=0.001), num_workers=3) as loader:
        batches = iter(loader)
        while loader.counters.workers < 3:
            next(batches)
        loader.resize(1)
        assert loader.counters.workers == loader.workers == 1
        assert indices_of([next(batches)]) != []


def test_each_epoch_has_another_order_and_can_be_repeated_or_begun_from_a_state() -> None:
    loader, other = loader_of(Noisy(20), shuffle=True), loader_of(Noisy(20), shuffle=True)
    first = list(loader)
    other.load_state_dict(loader.state_dict())  # between two epochs
    second = list(loader)
    assert first != second == list(other)
    assert sorted(all_indices_of(first)) == sorted(all_indices_of(second)) == list(range(20))
    loader.set_epoch(0)
    assert list(loader) == first


def test_a_state_of_another_order_is_refused() -> None:
    with pytest.raises(ValueError, match="the state is of seed 5, this loader has 1"):
        loader_of(Noisy(8)).load_state_dict(loader_of(Noisy(8), seed=5).state_dict())
    with pytest.raises(ValueError, match="not the state of an ElasticDataLoader"):
        loader_of(Noisy(8)).load_state_dict({"epoch": 1})


@given(
    length=st.integers(1, 60),
    batch=st.integers(1, 5),
    ranks=st.integers(1, 4),
    drop=st.booleans(),
    epoch=st.integers(0, 3),
)
def test_ranks_share_an_epoch(length: int, batch: int, ranks: int, drop: bool, epoch: int) -> None:
    given = []
    for rank in range(ranks):
        loader = loader_of(Noisy(length), batch, shuffle=True, rank=rank, world_size=ranks, drop_last=drop)
        loader.set_epoch(epoch)
        given.append(indices_of(loader))
    assert len({len(batches) for batches in given}) == 1  # nobody waits for a rank that has ended
    assert all(len(batches) == len(loader) for batches in given)
    samples = sorted(index for batches in given for batch in batches for index in batch)
    if drop:
        assert len(samples) == length // (batch * ranks) * batch * ranks == len(set(samples))
    else:
        assert set(samples) == set(range(length))
        assert len(samples) - length < ranks


def test_another_number_of_ranks_can_continue_an_epoch() -> None:
    begun = []
    for rank in range(2):
        loader = loader_of(Noisy(48), 6, shuffle=True, rank=rank, world_size=2)
        batches = iter(loader)
        begun += [next(batches), next(batches)]
        state = loader.state_dict()
    for rank in range(3):
        loader = loader_of(Noisy(48), 4, shuffle=True, rank=rank, world_size=3)
        loader.load_state_dict(state)
        begun += list(loader)
    assert sorted(all_indices_of(begun)) == list(range(48))


class Drawn:
    """A sampler that draws random numbers without end."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield random.randrange(50)


def test_the_random_numbers_of_a_sampler_depend_on_seed_and_epoch() -> None:
    batches = iter(loader_of(Noisy(50), sampler=Drawn()))
    again = iter(loader_of(Noisy(50), sampler=Drawn(), num_workers=1))
    assert [next(batches) for _ in range(100)] == [next(again) for _ in range(100)]


def test_a_batch_sampler_determines_the_batches() -> None:
    loader = loader_of(ByKey(), 1, batch_sampler=[["a", "b"], ["c"]])
    assert len(loader) == 2
    assert [[key for key, _ in batch] for batch in loader] == [["a", "b"], ["c"]]


def test_two_iterations_at_the_same_time_have_the_same_batches() -> None:
    with loader_of(Noisy(40), num_workers=2) as loader:
        assert all(indices_of([one]) == indices_of([other]) for one, other in zip(loader, loader, strict=True))


def seen(batches: Any) -> set[Any]:
    return {what for batch in batches for _, what in batch}


def grow_to(loader: ElasticDataLoader, workers: int, batches: Iterator[Any]) -> list[Any]:
    """Resize the loader, and return the batches that are given until the workers have started."""
    loader.resize(workers)
    given = []
    while loader.counters.workers != workers:
        given.append(next(batches))
    return given


@pytest.mark.parametrize("at_first", [1, 2])
def test_all_workers_of_an_epoch_have_the_dataset_of_its_beginning(at_first: int) -> None:
    dataset = Changing(40_000, latency=0.001)
    with loader_of(dataset, num_workers=at_first) as loader:
        batches = iter(loader)
        grow_to(loader, 2, batches)
        dataset.content = 1
        batches = iter(loader)
        dataset.content = 2
        kill_a_worker(loader, 0)
        given = grow_to(loader, 4, batches)
        assert seen([*given, *(next(batches) for _ in range(400))]) == {1}
        assert seen(next(iter(loader)) for _ in range(3)) == {2}


def test_two_iterations_at_the_same_time_have_the_datasets_of_their_beginnings() -> None:
    dataset = Changing(40)
    with loader_of(dataset, num_workers=2, multiprocessing_context="spawn") as loader:
        one = iter(loader)
        dataset.content = 1
        other = iter(loader)
        pairs = list(zip(one, other, strict=True))
    assert seen(first for first, _ in pairs) == {0}
    assert seen(second for _, second in pairs) == {1}


def test_workers_added_to_an_epoch_without_workers_have_its_dataset() -> None:
    dataset = Changing(40_000, latency=0.001)
    with loader_of(dataset, num_workers=0) as loader:
        dataset.content = 1
        batches = iter(loader)
        assert seen(grow_to(loader, 2, batches)) == {1}
        assert seen([next(batches) for _ in range(20)]) == {1}


def test_the_start_function_of_a_worker_is_called_again_for_a_changed_dataset() -> None:
    dataset = Counting(8)
    options = {"worker_init_fn": count_call, "multiprocessing_context": "spawn"}
    with loader_of(dataset, num_workers=1, **options) as loader:
        assert seen(loader) == seen(loader) == {1}
        dataset.content = 1
        assert seen(loader) == {2}


def test_an_epoch_has_the_length_of_the_dataset_at_its_beginning() -> None:
    dataset = Noisy(8)
    with loader_of(dataset, num_workers=1) as loader:
        batches = iter(loader)
        dataset.length = 12
        assert len(list(batches)) == 2
        assert len(list(loader)) == len(loader) == 3


def test_workers_that_start_late_have_the_shared_objects_of_the_dataset() -> None:
    dataset = Asking(40_000, latency=0.001)
    dataset.queue = Queue()
    dataset.queue.put("one")
    with loader_of(dataset, num_workers=1, multiprocessing_context="spawn") as loader:
        batches = iter(loader)
        given = [next(batches)]
        dataset.queue = None  # only the workers have it now
        given += grow_to(loader, 3, batches)
        assert seen([*given, *(next(batches) for _ in range(20))]) == {1}


@pytest.mark.parametrize("is_shared", [False, True])
def test_workers_that_start_late_have_the_tensors_of_the_dataset(is_shared: bool) -> None:
    torch = pytest.importorskip("torch")
    dataset = Holding(40_000, latency=0.001)
    dataset.content = torch.ones(1000)
    if is_shared:
        dataset.content.share_memory_()
    with loader_of(dataset, num_workers=1) as loader:
        batches = iter(loader)
        given = grow_to(loader, 3, batches)
        assert seen([*given, *(next(batches) for _ in range(20))]) == {1000.0}
        assert seen(next(iter(loader)) for _ in range(3)) == {1000.0}


def test_an_abandoned_iteration_does_not_affect_the_next() -> None:
    with loader_of(Noisy(LENGTH), shuffle=True, num_workers=2) as loader:
        for _ in loader:
            break
        loader.set_epoch(0)
        assert list(loader) == UNDISTURBED


def test_many_iterations_can_be_abandoned() -> None:
    with loader_of(Noisy(LENGTH, latency=0.005), num_workers=2, timeout=30) as loader:
        for _ in range(20):
            assert indices_of([next(iter(loader))]) == [[0, 1, 2, 3]]


NOT_REBUILT = r"TwoArguments: 7 of 20 \(this error cannot be rebuilt: TypeError: "


@pytest.mark.parametrize(
    ("dataset", "workers", "kind", "told"),
    [
        *((Failing(20), n, OSError, "the disk is gone: 'sample-7.jpg'") for n in (0, 2)),
        *((RunningDry(20), n, RuntimeError, "the dataset raised StopIteration") for n in (0, 2)),
        (FailingInTwoArguments(20), 2, RuntimeError, NOT_REBUILT),
        (HoldingUnrebuildable(20), 2, RuntimeError, "worker made cannot be rebuilt: LookupError: such a sample is not"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Noisy) else None,
)
def test_an_error_of_a_sample_is_raised_in_place_of_its_batch(
    dataset: Noisy, workers: int, kind: type[Exception], told: str
) -> None:
    # A worker that is forked has what libraries such as tblib made of pickle in this process, and sends more errors.
    options = {"timeout": 60, "multiprocessing_context": "spawn"} if workers else {}
    with loader_of(dataset, num_workers=workers, **options) as loader:
        batches = iter(loader)
        assert indices_of([next(batches)]) == [[0, 1, 2, 3]]
        with pytest.raises(kind, match=told) as caught:
            next(batches)
        assert indices_of(batches) == [[8, 9, 10, 11], [12, 13, 14, 15], [16, 17, 18, 19]]
    if workers and isinstance(dataset, Failing | FailingInTwoArguments):
        assert "in __getitem__" in caught.value.__notes__[0]


def test_the_error_names_the_samples_of_a_batch_that_ends_its_workers() -> None:
    with loader_of(Deadly(20), num_workers=2) as loader, pytest.raises(LoadingError) as caught:
        list(loader)
    assert str(caught.value) == (
        "three loading workers ended over one batch (the last with signal SIGKILL), of the samples [4, 5, 6, 7]"
    )


class Leaving(Noisy):
    """A dataset of which one sample leaves in one of several ways, and that logs which samples are read."""

    def __init__(self, way: str, log: Path) -> None:
        super().__init__(8)
        self.way, self.log = way, log

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        with self.log.open("a") as log:
            log.write(f"{index}\n")
        if index == 5 and self.way == "os._exit":
            os._exit(3)
        if index == 5:
            raise {each.__name__: each for each in LEAVING}[self.way](3)
        return super().__getitem__(index)


class OwnEnd(BaseException):
    """An exception that `except Exception` does not catch."""


LEAVING: list[type[BaseException]] = [SystemExit, KeyboardInterrupt, GeneratorExit, OwnEnd]


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("way", [*(each.__name__ for each in LEAVING), "os._exit"])
def test_a_batch_whose_sample_leaves_is_not_made_again(way: str, context: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = {"num_workers": 1, "multiprocessing_context": context}
    with loader_of(Leaving(way, log), **options) as loader:
        with pytest.raises(
            RuntimeError, match=r"exited unexpectedly, with (exit code \d|signal SIGINT), .* samples \[4, 5, 6, 7\]"
        ):
            list(loader)
        assert log.read_text().split() == [*"012345"]
        with pytest.raises(RuntimeError, match="exited unexpectedly"):
            list(loader)


@pytest.mark.parametrize("kind", LEAVING)
def test_without_workers_what_a_sample_raises_to_leave_reaches_the_trainer(
    kind: type[BaseException], tmp_path: Path
) -> None:
    with pytest.raises(kind):
        list(loader_of(Leaving(kind.__name__, tmp_path / "log")))


class Processes:
    """What multiprocessing says of the process that reads a sample, and how many children it has."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.02)
        own, parent = mp.current_process(), mp.parent_process()
        assert parent is not None
        is_own = own.pid == os.getpid()
        return own.name, (own.daemon, is_own, parent.name, parent.pid, parent.is_alive(), mp.active_children())


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_worker_is_a_daemon_of_the_trainer_for_multiprocessing(context: str) -> None:
    options = {"num_workers": 2, "multiprocessing_context": context, "persistent_workers": True}
    with loader_of(Processes(), batch_size=1, **options) as loader:
        deadline = time.monotonic() + 30
        while loader.counters.workers < 2 and time.monotonic() < deadline:
            list(loader)
        told = [sample for batch in loader for sample in batch]
    assert all(rest == (True, True, "MainProcess", os.getpid(), True, []) for _, rest in told)
    names = {name for name, _ in told}
    assert len(names) == 2
    assert all(name.startswith("LoadingWorker-") for name in names)


COMPARING = """
import sys

sys.modules["torch"] = None  # nothing here needs it, and every process would import it

from torchloader import ElasticDataLoader

class Squares:
    def __len__(self): return 4
    def __getitem__(self, index): return index * index

def is_other(): return __name__ == "other"

loader = ElasticDataLoader(Squares(), 2, num_workers=1, collate_fn=list, multiprocessing_context="spawn")
{guard}print(list(loader))
"""


def test_the_error_of_workers_that_run_the_main_program_names_the_main_guard(site: Site) -> None:
    done = site.python(COMPARING.format(guard=""))  # a comparison in a function is none
    assert done.stdout == "[[0, 1], [4, 9]]\n", done.stderr
    done = site.python(COMPARING.format(guard="if __name__ != 'other': "))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "torchloader.loader.crew.LoadingError: loading workers end at their start, with exit code 1; such a process "
        "imports the main program: keep what starts processes, or runs the program, under "
        'if __name__ == "__main__":'
    )


def leave_from(worker: int) -> None:
    raise SystemExit(4)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_worker_init_fn_that_leaves_is_called_once(context: str) -> None:
    options = {"num_workers": 1, "multiprocessing_context": context, "worker_init_fn": leave_from}
    with loader_of(Noisy(8), **options) as loader:
        with pytest.raises(LoadingError, match="end at their start, with exit code 4"):
            list(loader)
        assert loader.counters.replaced == 1


def test_the_next_epoch_is_loaded_after_workers_ended_in_the_last_one(tmp_path: Path) -> None:
    deadly = tmp_path / "deadly"
    deadly.touch()
    with loader_of(DeadlyOnce(20, str(deadly)), num_workers=2, timeout=60) as loader:
        batches = iter(loader)
        with pytest.raises(LoadingError, match="ended over one batch"):
            list(batches)
        deadly.unlink()
        assert all_indices_of(loader) == list(range(20))
        with pytest.raises(LoadingError, match="begin another one"):
            next(batches)


def test_the_next_epoch_is_loaded_after_workers_could_not_start_in_the_last_one(tmp_path: Path) -> None:
    lacking = tmp_path / "settings"

    def begin(worker: int) -> None:
        lacking.read_text()

    with loader_of(Noisy(20), num_workers=3, timeout=60, worker_init_fn=begin) as loader:
        with pytest.raises(FileNotFoundError):
            list(loader)
        lacking.touch()
        assert all_indices_of(loader) == list(range(20))


@pytest.mark.parametrize(
    ("dataset", "told"),
    [
        (Unreadable(20), "the file of this dataset is not there"),
        (UnreadableInTwoArguments(20), r"TwoArguments: 1 of 2 \(this error cannot be rebuilt"),
    ],
)
def test_a_dataset_that_workers_cannot_unpickle_is_an_error(dataset: Noisy, told: str) -> None:
    options = {"num_workers": 2, "timeout": 60, "multiprocessing_context": "spawn"}
    with loader_of(dataset, **options) as loader, pytest.raises(RuntimeError, match=told):
        list(loader)


def test_a_batch_that_is_not_made_in_time_is_a_timeout_error() -> None:
    with (
        loader_of(Noisy(8, latency=30.0), num_workers=1, timeout=0.3) as loader,
        pytest.raises(TimeoutError, match=r"no batch in 0.3 s"),
    ):
        list(loader)


def test_auto_adds_workers_for_a_waiting_trainer() -> None:
    with loader_of(Noisy(1600, latency=0.002), num_workers="auto", max_workers=12) as loader:
        for _ in range(20):  # epochs: on a busy machine the trainer itself may be what the others wait for
            for _ in loader:
                time.sleep(0.002)
            if loader.workers >= 3:
                break
        assert 3 <= loader.workers <= 12  # four would do on a quiet machine


def test_auto_does_not_use_more_workers_than_are_needed() -> None:
    with loader_of(Noisy(400), num_workers="auto") as loader:
        for _ in loader:
            time.sleep(0.005)
        # One does, where the machine has nothing else to do; it might take eight for each core.
        assert loader.workers <= 4 * len(os.sched_getaffinity(0))


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"num_workers": -1}, ValueError, "num_workers must be at least 0, not -1"),
    ({"batch_size": 0}, ValueError, "batch_size must be at least 1"),
    ({"shuffle": True, "sampler": [1]}, ValueError, "without shuffle"),
    ({"batch_sampler": [[1]], "batch_size": 2}, ValueError, "a batch_sampler decides everything"),
    ({"rank": 2, "world_size": 2}, ValueError, "rank 2 is not one of 2"),
    ({"sampler": [1], "rank": 0, "world_size": 2}, ValueError, "a sampler shares the samples among ranks itself"),
    ({"prefetch_factor": 0}, ValueError, "prefetch_factor must be at least 1"),
    ({"num_workers": "auto", "max_workers": 0}, ValueError, "max_workers must be at least 1, not 0"),
    *(
        ({name: value}, TypeError, f"{name} must be a whole number, not {value!r}")
        for name, value in [("batch_size", 2.5), ("batch_size", "2"), ("batch_size", True), ("seed", 1.5)]
    ),
    ({"num_workers": "2"}, TypeError, "num_workers must be a whole number, or \"auto\" at the start, not '2'"),
    ({"timeout": "2"}, TypeError, "timeout must be a number of seconds, not '2'"),
    ({"generator": 5}, TypeError, "generator must be a torch.Generator, not 5"),
    *(
        ({name: 5}, TypeError, f"{name} must give one index or batch of indices after another, not 5")
        for name in ("sampler", "batch_sampler")
    ),
]


@pytest.mark.parametrize(("options", "kind", "told"), REFUSED)
def test_invalid_arguments_are_refused(options: dict[str, Any], kind: type[Exception], told: str) -> None:
    with pytest.raises(kind, match=told):
        ElasticDataLoader(Noisy(8), **options)


def test_positions_are_whole_numbers_from_0_on() -> None:
    loader = loader_of(Noisy(LENGTH), np.int64(4), shuffle=True, seed=np.int64(1))
    with pytest.raises(ValueError, match="position must be at least 0, not -4"):
        loader.load_state_dict({**loader.state_dict(), "position": -4})
    with pytest.raises(ValueError, match="epoch must be at least 0, not -1"):
        loader.set_epoch(-1)
    loader.set_epoch(np.int64(0))
    assert list(loader) == UNDISTURBED


@pytest.mark.parametrize(("sampler", "given"), [(np.array([3, 1, 2]), [[3, 1, 2]]), ([], [])])
def test_a_sampler_can_be_an_array_or_empty(sampler: Any, given: list[list[int]]) -> None:
    assert [[key for key, _ in batch] for batch in loader_of(ByKey(), sampler=sampler)] == given


def test_an_iterator_is_refused_as_a_dataset() -> None:
    with pytest.raises(TypeError, match=r"list_iterator is no dataset: .*an __iter__\(\) that begins anew each time"):
        ElasticDataLoader(iter([1, 2]))


def test_a_loader_has_the_attributes_of_a_pytorch_loader() -> None:
    data = pytest.importorskip("torch.utils.data")
    asked = {"num_workers": 0, "timeout": 9, "worker_init_fn": print, "drop_last": True, "persistent_workers": False}
    options = inspect.signature(data.DataLoader).parameters.keys() - {"shuffle"}
    told = ElasticDataLoader(range(8), 4, **asked)
    assert {name for name in options if not hasattr(told, name)} == set()
    assert {name: getattr(told, name) for name in asked} == asked


@pytest.mark.parametrize("workers", [0, 2])
def test_a_closed_loader_and_its_iterators_raise_an_error(workers: int) -> None:
    loader = loader_of(Noisy(200), num_workers=workers)
    batches = iter(loader)
    next(batches)
    loader.close()
    for use in (lambda: next(batches), lambda: iter(loader), lambda: loader.resize(2)):
        with pytest.raises(ValueError, match="the loader is closed"):
            use()


TRAINER = """
import os, signal, sys, time

sys.modules["torch"] = None  # nothing here needs it, and every process would import it
from dragon.globalservices.process import get_list, query
from dragon.native.process import Process
from torchloader import ElasticDataLoader

class Numbers:
    def __len__(self): return 1000
    def __getitem__(self, index): return index

def train():
    batches = iter(ElasticDataLoader(Numbers(), 4, collate_fn=list, num_workers=3))
    next(batches)
    os.kill(os.getpid(), signal.SIGKILL)

def alive():
    return sum(query(each).ecode is None for each in get_list())

if __name__ == "__main__":
    trainer = Process(train)
    trainer.start()
    trainer.join()
    end = time.monotonic() + 20
    while alive() > 1 and time.monotonic() < end:
        time.sleep(0.1)
    print(trainer.returncode, alive())
"""


def test_workers_end_with_their_trainer(site: Site) -> None:
    done = site.dragon(site.write(TRAINER))
    assert done.stdout == "-9 1\n", done.stderr


def test_a_loader_gives_the_same_batches_as_a_pytorch_loader() -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data

    class Images(data.Dataset):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return 37

        def __getitem__(self, index: int) -> dict[str, Any]:
            info = data.get_worker_info()
            assert info is None or info.dataset is self
            return {"image": torch.full((3, 4), float(index)), "label": index, "noise": torch.rand(2)}

    def begin(worker: int) -> None:
        assert data.get_worker_info().id == worker

    options = {"num_workers": 2, "worker_init_fn": begin, "multiprocessing_context": "fork"}
    theirs, here = list(data.DataLoader(Images(), batch_size=8)), list(ElasticDataLoader(Images(), 8, seed=1))
    with ElasticDataLoader(Images(), 8, seed=1, **options) as loader:
        ours = list(loader)
    assert len(ours) == len(theirs) == 5
    for one, other, third in zip(ours, theirs, here, strict=True):
        assert one.keys() == other.keys()
        assert torch.equal(one["image"], other["image"])
        assert torch.equal(one["label"], other["label"])
        assert torch.equal(one["noise"], third["noise"])
        one["image"] += 1  # a batch is the trainer's own
