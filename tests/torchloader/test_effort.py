"""The cost of a batch for the process that makes it."""

from __future__ import annotations

import os
import time

import pytest

from torchloader.loader.messages import Effort, Meter
from torchloader.loader.tuner import Look


def test_computing_uses_cpu_time_and_sleeping_does_not() -> None:
    meter = Meter()
    start = meter.now()
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    computed = meter.now().since(start)
    start = meter.now()
    time.sleep(0.05)
    slept = meter.now().since(start)
    assert 0.02 <= computed.cpu <= computed.seconds * 1.01
    assert slept.seconds >= 0.05
    assert slept.cpu < 0.02


def test_the_delay_is_zero_if_the_kernel_does_not_account_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: str, flags: int) -> int:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "open", fails)
    assert Meter().now().delayed == 0.0


def test_the_effort_of_a_batch_excludes_the_wait_for_a_core() -> None:
    assert Effort(3.0, 1.0, 1.5).alone == 1.5
    assert Effort(3.0, 2.0, 1.5).alone == 2.0  # several threads computed


def test_the_number_of_busy_workers_is_the_rate_times_the_time_of_a_batch() -> None:
    look = Look(4, 100, 0.0, 2.0, made=100, effort=Effort(5.0, 1.0, 1.0))
    assert look.rate == 50
    assert look.busy == pytest.approx(2.5)
    assert look.service == pytest.approx(0.04)
    assert look.share == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("waited", "computed", "cpu", "trainer", "cores", "demand"),
    [
        (8.0, 2.0, 0.1, 0.0, 4, 5.0),  # the trainer could use 50 batches a second, a batch takes 0.1 s of a worker
        (9.9, 0.1, 10.0, 0.0, 4, 4.0),  # no more than the cores allow
        (9.9, 0.1, 10.0, 2.5, 4, 3.2),  # on which the trainer computes, too
    ],
)
def test_the_demand_for_workers_is_limited_by_the_cores(
    waited: float, computed: float, cpu: float, trainer: float, cores: float, demand: float
) -> None:
    look = Look(1, 100, waited, computed, trainer, 100, Effort(10.0, cpu, 0.0))
    assert look.demand(cores) == pytest.approx(demand)
