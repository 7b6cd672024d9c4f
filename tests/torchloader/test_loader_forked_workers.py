"""Workers that are forked from their trainer, with multiprocessing_context="fork"."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from loader_datasets import Changing, Deadly, Large, Noisy, pid_of

from conftest import Site
from torchloader import ElasticDataLoader, LoadingError

MIB = 1 << 20
UNDISTURBED = list(ElasticDataLoader(Noisy(400), 4, shuffle=True, collate_fn=list, seed=1))


def loader_of(dataset: Any, batch_size: int = 4, **options: Any) -> ElasticDataLoader:
    options = {"num_workers": 2, "collate_fn": list, "seed": 1, "multiprocessing_context": "fork", **options}
    return ElasticDataLoader(dataset, batch_size, **options)


class Held:
    """A dataset that cannot be pickled, whose samples are the process id of the worker."""

    def __init__(self) -> None:
        self.lock, self.numbers = threading.Lock(), (number for number in range(8))

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> int:
        with self.lock:
            time.sleep(0.001)
            return os.getpid()


def test_forked_workers_can_have_objects_that_cannot_be_pickled() -> None:
    with loader_of(Held()) as loader:
        assert os.getpid() not in {pid for batch in loader for pid in batch}


def test_persistent_workers_keep_the_dataset_of_the_first_epoch_as_with_pytorch() -> None:
    dataset = Changing(8)
    with loader_of(dataset, persistent_workers=True) as loader:
        assert {sample[1] for batch in loader for sample in batch} == {0}
        dataset.content = 1
        assert {sample[1] for batch in loader for sample in batch} == {0}


def test_persistent_workers_use_the_seed_of_a_loaded_state() -> None:
    options = {"shuffle": True, "seed": None, "persistent_workers": True}
    with loader_of(Noisy(40), **options) as loader:
        list(loader)
        loader.load_state_dict({"version": 1, "seed": 1, "epoch": 0, "position": 0})
        assert list(loader) == list(ElasticDataLoader(Noisy(40), 4, shuffle=True, collate_fn=list, seed=1))


def test_the_memory_of_the_trainer_is_not_copied() -> None:
    dataset = Large(128 * MIB)
    dataset.numbers, dataset.kind = np.zeros(128 * MIB, np.uint8) + np.uint8(0), "Private_Dirty"
    with loader_of(dataset) as loader:
        assert max(memory for batch in loader for _, memory in batch) < 64 * MIB


def test_an_iterable_style_dataset_must_be_picklable() -> None:
    with (
        loader_of(_Stream(threading.Lock())) as loader,
        pytest.raises(TypeError, match=r"dataset\.held cannot be sent .* at the first __iter__\(\) or in") as caught,
    ):
        iter(loader)
    assert "fork" not in str(caught.value)


class _Stream:
    def __init__(self, held: Any) -> None:
        self.held = held

    def __iter__(self) -> Any:
        return iter([os.getppid(), *self.held])


def test_workers_of_streams_are_forked_for_each_epoch() -> None:
    with loader_of(_Stream([1, 2]), 3) as loader:
        first, second = ({batch[0] for batch in loader} for _ in range(2))
        assert len(first) == len(second) == 1
        assert os.getpid() not in first | second
        assert first != second


@pytest.mark.parametrize("ends", [lambda loader: None, lambda loader: loader.close()], ids=["epoch", "loader"])
def test_workers_end_with_their_epoch(ends: Callable[[ElasticDataLoader], None]) -> None:
    loader = loader_of(Held())
    pids = {pid for batch in loader for pid in batch}
    ends(loader)
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    loader.close()


class Proxied:
    """A dictionary of another process; the samples are the connections over which workers read it."""

    def __init__(self, proxy: Any) -> None:
        self.proxy = proxy

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> str:
        self.proxy[index] = index
        assert self.proxy[index] == index
        return self.connection()

    def connection(self) -> str:
        return os.readlink(f"/proc/self/fd/{self.proxy._tls.connection.fileno()}")


def test_a_proxy_of_a_manager_has_a_separate_connection_in_each_worker() -> None:
    with multiprocessing.Manager() as manager:
        dataset = Proxied(manager.dict())
        dataset[0]  # connects
        with loader_of(dataset) as loader:
            connections = {one for batch in loader for one in batch}
        assert dataset.connection() not in connections


def test_an_iteration_whose_template_was_killed_fails_and_the_next_one_works() -> None:
    for persistent in (False, True):
        with loader_of(Noisy(400, latency=0.001), shuffle=True, persistent_workers=persistent) as loader:
            batches = iter(loader)
            next(batches)
            worker = next(
                worker.process for worker in loader._crew._workers.values() if worker.ready and worker.process
            )
            os.kill(psutil.Process(pid_of(worker)).ppid(), signal.SIGKILL)
            with pytest.raises(LoadingError, match=r"process \d+, which they are forked from, has ended"):
                list(batches)
            loader.set_epoch(0)
            assert list(loader) == UNDISTURBED


def test_iterations_abandoned_at_once_do_not_affect_the_next_one() -> None:
    with loader_of(Noisy(400), shuffle=True) as loader:
        for _ in range(20):
            iter(loader)
        loader.set_epoch(0)
        assert list(loader) == UNDISTURBED


@pytest.mark.parametrize("dataset", [Noisy(12), _Stream([1, 2, 3])], ids=["map-style", "iterable-style"])
def test_an_iteration_can_begin_while_workers_of_the_last_one_start(dataset: Any) -> None:
    with loader_of(dataset) as loader:
        for _ in range(6):
            last = iter(loader)
            assert len(next(iter(loader))) == 4
            del last


class Threads:
    """Samples that show which thread of the trainer was forked."""

    def __len__(self) -> int:
        return 40_000

    def __getitem__(self, index: int) -> tuple[int, str]:
        return os.getpid(), threading.current_thread().name


def test_the_trainer_is_forked_in_the_thread_that_takes_batches() -> None:
    with loader_of(Threads()) as loader:
        loader.resize(0)
        batches = iter(loader)
        next(batches)
        loader.resize(1)
        while loader.counters.workers != 1:
            next(batches)
        told = {sample for _ in range(40) for sample in next(batches)}
    assert {name for pid, name in told if pid != os.getpid()} == {threading.current_thread().name}


def leave_at_once(worker: int) -> None:
    os._exit(7)


def test_workers_that_end_at_their_start_raise_a_specific_error() -> None:
    with (
        loader_of(Noisy(8), worker_init_fn=leave_at_once) as loader,
        pytest.raises(LoadingError, match="loading workers end at their start, with exit code 7"),
    ):
        list(loader)


KILLED = """
import os, signal, sys, time

sys.modules["torch"] = None  # nothing here needs it, and every process would import it
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


def test_workers_within_a_sample_end_if_their_trainer_is_killed(site: Site) -> None:
    done = site.python(KILLED)
    assert done.returncode == -9, done.stderr
    deadline = time.monotonic() + 10
    while site.processes() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert site.processes() == []


def children() -> set[int]:
    """Return the children of this process that have not ended."""
    found = psutil.Process().children()
    return {each.pid for each in found if each.status() != psutil.STATUS_ZOMBIE}


def test_no_processes_are_left_if_the_program_keeps_an_error_of_the_loader() -> None:
    before = children()
    gc.collect()
    gc.disable()  # which would find what the error refers to
    try:
        with loader_of(Deadly(20)) as loader, pytest.raises(LoadingError) as caught:
            list(loader)
        deadline = time.monotonic() + 20
        while children() - before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert children() - before == set()
        assert caught.value.__traceback__ is not None
    finally:
        gc.enable()
