"""Workers that are forked from their trainer, with multiprocessing_context="fork"."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loader_datasets import Changing, Deadly, Large, Noisy

from conftest import Site
from torchloader import ElasticDataLoader, LoadingError

MIB = 1 << 20
UNDISTURBED = list(ElasticDataLoader(Noisy(400), 4, shuffle=True, collate_fn=list, seed=1))


def loader_of(dataset: Any, batch_size: int = 4, **options: Any) -> ElasticDataLoader:
    options = {"num_workers": 2, "collate_fn": list, "seed": 1, "multiprocessing_context": "fork", **options}
    return ElasticDataLoader(dataset, batch_size, **options)


class Held:
    """What cannot be pickled, and who reads it."""

    def __init__(self) -> None:
        self.lock, self.numbers = threading.Lock(), (number for number in range(8))

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> int:
        with self.lock:
            time.sleep(0.001)
            return os.getpid()


def test_the_batches_are_those_of_other_workers() -> None:
    with loader_of(Noisy(400), shuffle=True) as loader:
        assert list(loader) == UNDISTURBED
        loader.set_epoch(0)
        assert list(loader) == UNDISTURBED


def test_workers_have_what_cannot_be_pickled() -> None:
    with loader_of(Held()) as loader:
        assert os.getpid() not in {pid for batch in loader for pid in batch}


def test_no_resize_and_no_kill_changes_a_batch() -> None:
    with loader_of(Noisy(400, latency=0.001), shuffle=True) as loader:
        given = []
        for number, batch in enumerate(loader):
            given.append(batch)
            if number in (10, 30):
                victim = next(worker.process for worker in loader._crew._workers.values() if worker.ready)
                os.kill(victim.pid, signal.SIGKILL)  # type: ignore[union-attr]
            if number % 20 == 19:
                loader.resize(1 + number % 3)
        assert given == UNDISTURBED
        assert loader.counters.replaced == 2


def test_workers_that_start_late_have_the_dataset_as_the_epoch_began() -> None:
    dataset = Changing(40_000, latency=0.001)
    with loader_of(dataset, num_workers=1) as loader:
        batches = iter(loader)
        next(batches)
        dataset.content = 1
        loader.resize(3)
        while loader.counters.workers != 3:
            next(batches)
        assert {sample[1] for _ in range(40) for sample in next(batches)} == {0}


def test_the_next_epoch_has_what_the_program_has_changed() -> None:
    dataset = Changing(8)
    with loader_of(dataset) as loader:
        contents = []
        for dataset.content in range(3):
            contents.append({sample[1] for batch in loader for sample in batch})
    assert contents == [{0}, {1}, {2}]


def test_persistent_workers_keep_the_dataset_of_the_first_epoch_as_with_pytorch() -> None:
    dataset = Changing(8)
    with loader_of(dataset, persistent_workers=True) as loader:
        assert {sample[1] for batch in loader for sample in batch} == {0}
        dataset.content = 1
        assert {sample[1] for batch in loader for sample in batch} == {0}


def test_the_trainer_s_memory_is_not_copied() -> None:
    dataset = Large(128 * MIB)
    dataset.numbers, dataset.kind = np.zeros(128 * MIB, np.uint8) + np.uint8(0), "Private_Dirty"
    with loader_of(dataset) as loader:
        assert max(memory for batch in loader for _, memory in batch) < 64 * MIB


def test_a_sample_that_ends_its_worker_is_named() -> None:
    with (
        loader_of(Deadly(8)) as loader,
        pytest.raises(LoadingError, match=r"exit code 9\), of the samples \[4, 5, 6, 7\]"),
    ):
        list(loader)


def test_an_iterable_style_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="'fork' is for map-style datasets"):
        loader_of(_Stream())


class _Stream:
    def __iter__(self) -> Any:
        return iter(range(8))


def test_workers_are_gone_once_their_loader_is_closed() -> None:
    loader = loader_of(Held())
    pids = {pid for batch in loader for pid in batch}
    loader.close()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


GLOBAL = """
from torchloader import ElasticDataLoader

words = []

class Words:
    def __len__(self): return 2
    def __getitem__(self, index): return words[index]

if __name__ == "__main__":
    words += ["one", "two"]
    print("begun", end=" ")
    with ElasticDataLoader(Words(), 2, num_workers=2, multiprocessing_context="fork", collate_fn=list) as loader:
        print(*loader)
"""


def test_workers_have_what_the_program_has_in_globals(site: Site) -> None:
    done = site.python(GLOBAL)
    assert (done.stdout, done.stderr) == ("begun ['one', 'two']\n", "")


KILLED = """
import os, signal, time
from torchloader import ElasticDataLoader

class Slow:
    def __len__(self): return 8
    def __getitem__(self, index):
        if index > 3: time.sleep(1000)
        return os.getpid()

if __name__ == "__main__":
    loader = ElasticDataLoader(Slow(), 1, num_workers=2, multiprocessing_context="fork", collate_fn=list)
    batches = iter(loader)
    print(*(next(batches)[0] for _ in range(4)), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_with_a_trainer_that_is_killed_also_in_the_middle_of_a_sample(site: Site) -> None:
    done = site.python(KILLED)
    assert done.returncode == -9, done.stderr
    deadline = time.monotonic() + 10
    while site.processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert site.processes() == []
