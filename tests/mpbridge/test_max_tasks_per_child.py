"""An executor whose workers end after some tasks continues with new workers."""

from __future__ import annotations

import multiprocessing as mp
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

import dragon  # noqa: F401


def pid(_: int) -> int:
    return os.getpid()


@pytest.mark.parametrize(("workers", "most"), [(1, 1), (2, 2), (3, 1), (2, 5)])
def test_workers_are_replaced_after_max_tasks_per_child(workers: int, most: int) -> None:
    with ProcessPoolExecutor(workers, mp.get_context("dragon"), max_tasks_per_child=most) as executor:
        futures = [executor.submit(pid, number) for number in range(12)]
        pids = [future.result(60) for future in futures]
        assert max(map(pids.count, pids)) <= most
        assert len(list(executor.map(pid, range(6), timeout=60))) == 6
