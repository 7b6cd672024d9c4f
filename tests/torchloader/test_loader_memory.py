"""Datasets in memory with workers that are new processes: one copy on a node, for all workers and epochs."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from loader_datasets import Large

from conftest import Site
from torchloader import ElasticDataLoader

MIB = 1 << 20
NEW = {"multiprocessing_context": "spawn"}  # new processes


def loader_of(dataset: Any, **options: Any) -> ElasticDataLoader:
    return ElasticDataLoader(
        dataset, **{"batch_size": 2, "num_workers": 2, "collate_fn": list, "seed": 1, **NEW, **options}
    )


def test_workers_share_the_arrays_of_the_dataset() -> None:
    with loader_of(Large(128 * MIB)) as loader:
        for _ in range(2):
            told = [sample for batch in loader for sample in batch]
            assert {total for total, _ in told} == {0}
            assert max(memory for _, memory in told) < 64 * MIB


def test_changes_of_the_dataset_by_a_worker_are_not_shared() -> None:
    dataset = Large(2 * MIB, writes=True)
    with loader_of(dataset, num_workers=1) as one, loader_of(dataset, num_workers=1) as other:
        assert [total for batch in one for total, _ in batch] == list(range(8))
        assert [total for batch in other for total, _ in batch] == list(range(8))
    assert dataset.numbers.sum() == 0


def test_changes_of_the_dataset_by_the_program_are_in_the_next_epoch() -> None:
    dataset = Large(2 * MIB)
    with loader_of(dataset) as loader:
        batches = iter(loader)
        dataset.numbers[-1] = 1
        assert {total for batch in batches for total, _ in batch} == {0}
        assert {total for batch in loader for total, _ in batch} == {1}
        dataset.numbers = np.full(4 * MIB, 2, np.uint8)
        assert {total for batch in loader for total, _ in batch} == {8 * MIB}


def test_abandoned_iterations_do_not_affect_workers_that_have_not_opened_the_dataset() -> None:
    dataset = Large(2 * MIB)
    with loader_of(dataset, timeout=30) as loader:
        for content in range(10):
            dataset.numbers[0] = content
            iter(loader)
        assert {total for batch in loader for total, _ in batch} == {9}


LIMITED = """
import resource
import sys
import warnings

sys.modules["torch"] = None  # nothing here needs it, and every process would import it

import numpy as np

from dragon.native.queue import Queue
from torchloader import ElasticDataLoader


class Zeros:
    numbers = None

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return int(self.numbers.sum())


if __name__ == "__main__":
    Queue()  # starts the run, whose memory is larger
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    dataset = Zeros()
    dataset.numbers = np.zeros(4 << 20, np.uint8)
    options = {"num_workers": 1, "multiprocessing_context": "spawn"}
    with ElasticDataLoader(dataset, batch_size=2, collate_fn=list, **options) as loader:
        with warnings.catch_warnings(record=True) as told:
            totals = list(loader)
    print(totals, told[0].message)
"""


def test_each_worker_has_a_copy_if_memory_cannot_be_shared(site: Site) -> None:
    done = site.python(LIMITED)
    assert done.stdout.startswith("[[0, 0], [0, 0]] 4 MiB cannot be shared"), done.stderr


class SharedTensors:
    """Samples that are tensors in shared memory, from a worker that is killed once."""

    def __init__(self, killed: Path) -> None:
        self.killed = killed

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if index == 6 and not self.killed.exists():
            self.killed.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
        return torch.full((3,), float(index)).share_memory_()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_tensors_in_shared_memory_of_a_killed_worker_are_received(method: str, tmp_path: Path) -> None:
    dataset = SharedTensors(tmp_path / "killed")
    with ElasticDataLoader(dataset, None, num_workers=1, prefetch_factor=8, multiprocessing_context=method) as loader:
        samples = iter(loader)
        received = [next(samples)]
        while not dataset.killed.exists() or psutil.pid_exists(int(dataset.killed.read_text())):
            time.sleep(0.01)
        received += samples
    assert [sample.tolist() for sample in received] == [[float(index)] * 3 for index in range(8)]


class Counted:
    """A stream whose state is a tensor in shared memory."""

    def __init__(self) -> None:
        self.count = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __iter__(self) -> Iterator[int]:
        while self.count < 8:
            self.count += 1
            yield int(self.count)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"].clone()


def test_the_state_of_a_stream_in_shared_memory_can_be_read_repeatedly() -> None:
    with ElasticDataLoader(Counted(), None, num_workers=1, snapshot_every_n_steps=1) as loader:
        samples = iter(loader)
        assert [next(samples) for _ in range(3)] == [1, 2, 3]
        states = [loader.state_dict() for _ in range(2)]
    for state in states:
        with ElasticDataLoader(Counted(), None, num_workers=2) as other:
            other.load_state_dict(state)
            assert list(other) == [4, 5, 6, 7, 8]


class Faults:
    """Samples of 8 MiB, with the number of page faults of the worker so far."""

    def __len__(self) -> int:
        return 128

    def __getitem__(self, index: int) -> Any:
        return torch.full((8 * MIB,), index, dtype=torch.uint8), resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_reuses_memory_for_its_batches(method: str) -> None:
    with ElasticDataLoader(Faults(), 4, num_workers=1, multiprocessing_context=method) as loader:
        faults = [int(counts[0]) for _, counts in loader]
    pages_of_a_batch = 4 * 8 * MIB // resource.getpagesize()
    # Each of the last 24 batches would need so many pages; how many batches are there at a time varies a little.
    assert faults[-1] - faults[7] < 12 * pages_of_a_batch


def test_the_error_of_batches_that_exceed_the_memory_names_the_settings_to_lower(site: Site) -> None:
    program = """
        import numpy as np

        from torchloader import ElasticDataLoader


        class Data:
            def __len__(self):
                return 64

            def __getitem__(self, index):
                return np.zeros(4 << 20, np.uint8)


        if __name__ == "__main__":
            with ElasticDataLoader(Data(), 4, num_workers=2, prefetch_factor=8) as loader:
                list(loader)
    """
    done = site.python(program, env={"DRAGON_ARENA_SIZE": "96M"})
    assert done.returncode == 1
    assert "lower prefetch_factor, num_workers or batch_size" in done.stderr
