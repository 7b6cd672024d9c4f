"""The choice of a number of workers by "auto", with computed loads and a computed clock instead of processes."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from dragon.claims import Claim
from torchloader.allocation.budget import Budget
from torchloader.loader.crew import Tally
from torchloader.loader.messages import Effort
from torchloader.loader.tuner import Limit, Look, Search, Tuner

CORES = 4
PREFETCH = 2


@dataclass(frozen=True)
class Load:
    """A load: a batch takes `latency` seconds of waiting for a storage and `cpu` seconds of a core; the trainer
    computes `step` seconds. The storage gives `bandwidth` batches per second at most."""

    step: float
    latency: float
    cpu: float = 0.0
    bandwidth: float = 1e9

    def rate(self, workers: int) -> float:
        """Return the batches per second."""
        loading = min(workers / (self.latency + self.cpu), self.bandwidth)
        if self.cpu:
            loading = min(loading, CORES / self.cpu)
        return min(loading, 1 / self.step)

    def best(self, at_most: int) -> int:
        """Return the smallest number of workers with the highest rate."""
        return min(range(1, at_most + 1), key=lambda workers: (-round(self.rate(workers), 6), workers))


class Alone(Claim):
    """A claim without any other claims."""

    def __init__(self) -> None:
        pass

    def settle(self, decide: Callable[[list[bytes]], bytes]) -> bool:
        decide([])
        return True

    def close(self) -> None:
        pass


class Trainer:
    """A trainer, and a crew whose workers start at once."""

    def __init__(self, load: Load, at_most: int = 32, noise: float = 0.0, epoch: int = 10**9) -> None:
        self.load, self.noise, self.epoch = load, noise, epoch
        self.tally, self.size = Tally(), 1
        self.time = self.cpu = 0.0
        self.given = self.begun = 0
        self.waited = 0.0
        self.requested = 0  # batches that were requested of workers that have left, and come without waiting
        self.sizes: list[int] = []
        self.random = random.Random(7)
        budget = Budget(CORES, Alone, lambda: self.time)
        self.tuner = Tuner(at_most, budget, lambda: self.cpu)

    @property
    def ready(self) -> int:
        return self.size

    @property
    def window(self) -> int:
        return PREFETCH * self.size

    def resize(self, size: int) -> None:
        self.requested = self.window if size < self.size else 0
        self.size = size
        self.sizes.append(size)

    def train(self, seconds: float, stall: float = 0.0) -> int:
        """Train for `seconds`, with a stall of loading in each second; return the number of batches."""
        end, given, stalled = self.time + seconds, self.given, int(self.time)
        while self.time < end:
            waited = 1 / self.load.rate(self.size) - self.load.step
            if self.given % self.epoch == 0:
                self.begun += 1
                waited = max(waited, self.load.latency + self.load.cpu - self.load.step)
            if self.requested:
                self.requested, waited = self.requested - 1, 0.0
            waited = max(0.0, waited * (1 + self.random.uniform(-self.noise, self.noise)))
            if int(self.time) > stalled:
                stalled = int(self.time)
                waited += stall
            # Whoever shares a core, or a storage, has each batch for longer.
            busy = min(self.size / self.load.rate(self.size), self.load.latency + self.load.cpu)
            took = max(busy, self.load.cpu) * (1 + self.random.uniform(-self.noise, self.noise))
            if self.load.rate(self.size) >= self.load.bandwidth:
                took = self.size / self.load.bandwidth
            self.tally.note(Effort(took, self.load.cpu, 0.0), 0)
            self.time += waited + self.load.step
            self.waited += waited
            self.given += 1
            self.tuner.note(self, waited, self.load.step)
        return self.given - given


LOADS = {
    "nothing to wait for": Load(0.010, 0.001),
    "latency": Load(0.002, 0.020),
    "more latency than workers": Load(0.0005, 0.100),
    "computing": Load(0.001, 0.0, 0.010),
    "both": Load(0.002, 0.010, 0.006),
    "a storage that gives no more": Load(0.001, 0.020, 0.0, 150.0),
}


@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_auto_is_within_5_percent_of_the_best_rate_with_few_surplus_workers(load: Load, noise: float) -> None:
    trainer = Trainer(load, noise=noise)
    trainer.train(10)
    given, before = trainer.train(60), trainer.time
    best = load.best(32)
    assert given >= 0.95 * 60 * load.rate(best)
    assert trainer.time == before
    assert trainer.size <= 1.25 * best + 1


@pytest.mark.parametrize("load", LOADS.values(), ids=LOADS)
def test_the_found_number_is_kept(load: Load) -> None:
    trainer = Trainer(load, noise=0.1)
    trainer.train(60)
    changes = len(trainer.sizes)
    trainer.train(600)
    assert len(trainer.sizes) - changes <= 20  # in ten minutes


def test_the_number_falls_when_the_storage_becomes_20_times_faster() -> None:
    trainer = Trainer(Load(0.002, 0.040), noise=0.1)
    trainer.train(20)
    assert trainer.size >= 20
    trainer.load = replace(trainer.load, latency=0.002)
    trainer.train(20)
    assert trainer.size <= 2


def test_the_number_rises_when_the_storage_becomes_slower() -> None:
    trainer = Trainer(Load(0.002, 0.002), noise=0.1)
    trainer.train(20)
    assert trainer.size <= 2
    trainer.load = replace(trainer.load, latency=0.020)
    trainer.train(20)
    assert 10 <= trainer.size <= 13


def test_a_stall_in_each_second_does_not_raise_the_number() -> None:
    trainer = Trainer(Load(0.004, 0.010), noise=0.1)
    trainer.train(300, stall=0.2)
    assert trainer.size <= 5


def test_measurements_span_several_short_epochs() -> None:
    load = Load(0.002, 0.020)
    trainer = Trainer(load, epoch=20)
    trainer.train(30)
    assert 10 <= trainer.size <= 13


def test_no_more_workers_are_used_than_the_cores_can_run() -> None:
    trainer = Trainer(Load(0.0001, 0.0, 0.010), noise=0.2)
    trainer.train(120)
    assert max(trainer.sizes) <= CORES
    assert trainer.size == CORES


def test_the_number_does_not_exceed_max_workers() -> None:
    trainer = Trainer(LOADS["latency"], at_most=3)
    trainer.train(20)
    assert trainer.size == 3
    assert trainer.tuner.tuning is not None
    assert trainer.tuner.tuning.limit is Limit.MOST


def test_the_tuning_says_that_the_search_continues() -> None:
    trainer = Trainer(LOADS["latency"])
    while trainer.size == 1:
        trainer.train(0.01)
    assert trainer.tuner.tuning is not None
    assert str(trainer.tuner.tuning).startswith("1 loading worker: the trainer computes 2 ms a batch and waits 9")
    assert trainer.tuner.tuning.limit is Limit.SEARCH


def test_the_found_number_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    trainer = Trainer(Load(0.002, 0.008))
    trainer.train(30)
    found = trainer.tuner.tuning
    assert found is not None
    assert str(found) == (
        f"{trainer.size} loading workers: the trainer computes 2 ms a batch and waits 0% of its time, a worker takes "
        "8 ms a batch (0% of it CPU time); more are not needed"
    )
    assert [record.getMessage() for record in caplog.records] == [f'num_workers="auto": {found}']


def test_a_busy_machine_does_not_reduce_workers_that_do_not_slow_each_other() -> None:
    search = Search()
    alone = Look(1, 100, 0.9, 0.1, made=100, effort=Effort(0.85, 0.85, 0.0))
    search.observe(alone)
    assert search.next(alone, 2.0, 2) == 2
    # A batch takes as much of a worker as before, and much longer, as other programs have the cores.
    crowded = Look(2, 100, 0.9, 0.1, made=100, effort=Effort(1.9, 0.85, 1.05))
    search.observe(crowded)
    assert search.next(crowded, 2.0, 16) >= 2


def test_a_number_with_a_slow_trainer_without_waits_counts_as_sufficient() -> None:
    search = Search()
    slow = Look(2, 100, 0.0, 2.0, made=100, effort=Effort(1.0, 0.0, 0.0))
    search.observe(slow)
    fast = Look(6, 100, 0.0, 1.0, made=100, effort=Effort(1.0, 0.0, 0.0))
    search.observe(fast)
    assert search.next(fast, 4.0, 16) == 2


def test_workers_that_slow_each_other_are_removed() -> None:
    search = Search()
    alone = Look(1, 100, 0.9, 0.1, made=100, effort=Effort(0.9, 0.01, 0.0))
    search.observe(alone)
    assert search.next(alone, 2.0, 8) == 8
    shared = Look(8, 100, 0.9, 0.1, made=100, effort=Effort(7.2, 0.01, 0.0))
    search.observe(shared)
    assert search.next(shared, 2.0, 8) == 1


def test_workers_that_restart_in_each_epoch_are_tuned() -> None:
    class Restarting(Trainer):
        """A trainer whose workers are not ready for the first batches of an epoch."""

        @property
        def ready(self) -> int:
            return self.size if self.given % self.epoch > 3 else 0

    trainer = Restarting(Load(0.002, 0.020), epoch=20)
    trainer.train(60)
    assert 9 <= trainer.size <= 13


def test_a_number_that_the_program_has_chosen_is_not_changed() -> None:
    trainer = Trainer(Load(0.002, 0.020))
    trainer.train(5)
    trainer.tuner.close()
    trainer.size, trainer.sizes = 3, []
    trainer.train(5)
    assert trainer.sizes == []


def best_of_fixed(train: Callable[[Trainer], int], **options: Any) -> int:
    """Return the batches that the trainer gets with the best fixed number of workers."""
    given = []
    for workers in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32):
        trainer = Trainer(**options)
        trainer.tuner.close()
        trainer.size = workers
        given.append(train(trainer))
    return max(given)


def trained_for_two_minutes(trainer: Trainer) -> int:
    return trainer.train(120)


def trained_while_the_storage_becomes_faster(trainer: Trainer) -> int:
    given = trainer.train(60)
    trainer.load = replace(trainer.load, latency=trainer.load.latency / 20)
    return given + trainer.train(60)


@pytest.mark.parametrize(
    ("train", "options"),
    [
        (trained_for_two_minutes, {"load": Load(0.002, 0.016)}),
        (trained_for_two_minutes, {"load": Load(0.001, 0.0, 0.008)}),
        (trained_for_two_minutes, {"load": Load(0.003, 0.010, 0.004)}),
        (trained_while_the_storage_becomes_faster, {"load": Load(0.004, 0.040)}),
        (trained_for_two_minutes, {"load": Load(0.002, 0.016), "epoch": 20}),
    ],
    ids=["latency", "computing", "both", "a storage that becomes faster", "short epochs"],
)
def test_auto_including_its_search_is_within_5_percent_of_the_best_fixed_number(
    train: Callable[[Trainer], int], options: dict[str, Any]
) -> None:
    given = train(Trainer(noise=0.2, **options))
    assert given >= 0.95 * best_of_fixed(train, noise=0.2, **options)


def test_batches_of_removed_workers_are_not_measured() -> None:
    trainer = Trainer(Load(step=0.03, latency=0.4, bandwidth=10))
    trainer.train(290)
    # It looks again after 20 seconds, then 40, then 80, as nothing has changed.
    assert trainer.sizes == [8, 30, *3 * [4, 16], 4]


def test_a_trainer_that_waits_for_slow_batches_gets_more_workers_quickly() -> None:
    trainer = Trainer(Load(step=0.03, latency=0.4))
    trainer.train(2)
    assert trainer.sizes == [8]
