"""Batches in page-locked memory."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from torchloader import ElasticDataLoader
from torchloader.loader import iteration
from torchloader.loader.pinning import Pinning

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


@pytest.fixture
def where(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that pinned a batch, one for each; where there is no GPU pinning changes nothing else."""
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


def test_the_next_batch_is_pinned_in_a_thread_while_the_program_works(where: list[str]) -> None:
    deadline = time.monotonic() + 60
    with ElasticDataLoader(range(40), 4, num_workers=2, pin_memory=True, prefetch_factor=4) as loader:
        while not any(name.startswith("torchloader-pin") for name in where):
            assert time.monotonic() < deadline
            for _ in loader:
                time.sleep(0.01)  # the next one comes meanwhile


def test_an_epoch_that_is_left_early_leaves_no_thread(where: list[str]) -> None:
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


def test_what_pinning_raises_is_raised_for_its_batch() -> None:
    def fail(batch: int) -> int:
        raise RuntimeError(f"batch {batch} cannot be pinned")

    pinning = Pinning(fail)
    pinning.begin(1, 11)
    with pytest.raises(RuntimeError, match="batch 11"):
        pinning.pinned(1, 11)
    pinning.close()


@needs_gpu
def test_tensors_of_batches_are_page_locked() -> None:
    with ElasticDataLoader([torch.ones(3)] * 16, 4, num_workers=2, pin_memory=True) as loader:
        assert all(batch.is_pinned() for batch in loader)
