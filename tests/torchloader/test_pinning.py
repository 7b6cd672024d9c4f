"""Batches in page-locked memory."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from conftest import Site
from torchloader import ElasticDataLoader
from torchloader.loader import iteration

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that pinned a batch, one for each batch; the pinning itself is replaced."""
    threads: list[str] = []

    def pin(batch: object) -> object:
        threads.append(threading.current_thread().name)
        return batch

    monkeypatch.setattr(iteration, "pinner", lambda: pin)
    return threads


def test_every_batch_is_pinned_once_and_in_order(where: list[str]) -> None:
    with ElasticDataLoader(range(40), 4, num_workers=2, pin_memory=True) as loader:
        given = [batch.tolist() for batch in loader]
    assert given == [[*range(first, first + 4)] for first in range(0, 40, 4)]
    assert len(where) == 10


def test_the_next_batch_is_pinned_in_a_thread_during_the_training_step(where: list[str]) -> None:
    deadline = time.monotonic() + 60
    with ElasticDataLoader(range(40), 4, num_workers=2, pin_memory=True, prefetch_factor=4) as loader:
        while not any(name.startswith("torchloader-pin") for name in where):
            assert time.monotonic() < deadline
            for _ in loader:
                time.sleep(0.01)  # the next one comes meanwhile


def test_an_abandoned_epoch_leaves_no_thread(where: list[str]) -> None:
    with ElasticDataLoader(range(400), 4, num_workers=2, pin_memory=True) as loader:
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        del batches
        assert next(iter(loader)).tolist() == [0, 1, 2, 3]
    for thread in threading.enumerate():
        if thread.name.startswith("torchloader-pin"):
            thread.join(30)
            assert not thread.is_alive()


class Awaited:
    """Numbers, of which the one at `held` waits until the file exists."""

    def __init__(self, file: Path, held: int) -> None:
        self.file, self.held = file, held

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        while index == self.held and not self.file.exists():
            time.sleep(0.01)
        return index


def test_no_batch_is_lost_if_workers_are_removed_during_a_wait(where: list[str], tmp_path: Path) -> None:
    dataset = Awaited(tmp_path / "go", held=4)
    with ElasticDataLoader(dataset, None, num_workers=1, pin_memory=True) as loader:
        batches = iter(loader)
        given = [next(batches) for _ in range(4)]
        loader.resize(0)
        dataset.file.touch()
        given.append(next(batches))
        loader.resize(2)
        assert given + [*batches] == list(range(12))
    assert len(where) == 12


def test_a_worker_that_is_killed_during_a_wait_for_its_batch_is_replaced(where: list[str], tmp_path: Path) -> None:
    def kill(index: int) -> int:
        if index == 4 and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        return index

    with ElasticDataLoader(range(12), None, num_workers=1, pin_memory=True, collate_fn=kill) as loader:
        assert [*loader] == list(range(12))
        assert loader.counters.replaced == 1


def patiently(batches: Iterator[int]) -> int:
    """Return the next batch, however often it is too late."""
    while True:
        with suppress(TimeoutError):
            return next(batches)


def test_a_batch_that_times_out_is_given_later(where: list[str], tmp_path: Path) -> None:
    dataset = Awaited(tmp_path / "go", held=4)
    # Forked, as from Python 3.14 on other workers are the default, which start too late for this time.
    options = {"num_workers": 1, "pin_memory": True, "timeout": 0.5, "multiprocessing_context": "fork"}
    with ElasticDataLoader(dataset, None, **options) as loader:
        batches = iter(loader)
        given = [patiently(batches) for _ in range(4)]
        with pytest.raises(TimeoutError, match=r"no batch in 0\.5 s"):
            next(batches)
        dataset.file.touch()
        given += [patiently(batches) for _ in range(8)]
        assert given == list(range(12))
        assert next(batches, None) is None


def test_batches_out_of_order_are_pinned_and_given_once(where: list[str], tmp_path: Path) -> None:
    dataset = Awaited(tmp_path / "go", held=4)
    with ElasticDataLoader(dataset, None, num_workers=2, pin_memory=True, in_order=False) as loader:
        batches = iter(loader)
        given = [next(batches) for _ in range(6)]
        assert 4 not in given
        dataset.file.touch()
        assert sorted(given + [*batches]) == list(range(12))
    assert len(where) == 12


def test_the_batches_of_two_simultaneous_iterations_are_pinned(where: list[str]) -> None:
    with ElasticDataLoader(range(40), 4, num_workers=2, pin_memory=True) as loader:
        for one, other in zip(loader, loader, strict=True):
            assert one.tolist() == other.tolist()
    assert len(where) == 20


def test_an_exception_of_pinning_is_raised_for_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(batch: int) -> int:
        if batch == 2:
            raise RuntimeError(f"batch {batch} cannot be pinned")
        return batch

    monkeypatch.setattr(iteration, "pinner", lambda: fail)
    with ElasticDataLoader(range(5), None, num_workers=1, pin_memory=True) as loader:
        batches = iter(loader)
        assert [next(batches), next(batches)] == [0, 1]
        with pytest.raises(RuntimeError, match="batch 2 cannot be pinned"):
            next(batches)
        assert [*batches] == [3, 4]


def test_a_program_can_end_while_a_batch_is_pending(site: Site) -> None:
    program = site.write("""
        import sys, time

        sys.modules["torch"] = None  # nothing here needs it, and every process would import it
        from torchloader import ElasticDataLoader
        from torchloader.loader import iteration


        class Slow:
            def __len__(self):
                return 10

            def __getitem__(self, index):
                time.sleep(600 if index else 0)
                return index


        if __name__ == "__main__":
            iteration.pinner = lambda: lambda batch: batch
            batches = iter(ElasticDataLoader(Slow(), None, num_workers=1, pin_memory=True, collate_fn=abs))
            print(next(batches))
    """)
    assert site.run(sys.executable, program, timeout=60).stdout == "0\n"
    site.assert_nothing_left()


@needs_gpu
def test_tensors_of_batches_are_page_locked() -> None:
    with ElasticDataLoader([torch.ones(3)] * 16, 4, num_workers=2, pin_memory=True) as loader:
        assert all(batch.is_pinned() for batch in loader)
