"""Managers of multiprocessing over Dragon's channels."""

from __future__ import annotations

import multiprocessing as mp
from typing import Any

import pytest

import dragon  # noqa: F401 - registers the start method

context = mp.get_context("dragon")


def count(counts: Any, lock: Any, key: str) -> None:
    for _ in range(20):
        with lock:
            counts[key] = counts.get(key, 0) + 1


def test_processes_share_the_objects_of_a_manager() -> None:
    with context.Manager() as manager:
        counts, lock = manager.dict(), manager.Lock()
        processes = [context.Process(target=count, args=(counts, lock, "a")) for _ in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert counts.copy() == {"a": 60}


def test_a_manager_can_hold_proxies() -> None:
    with context.Manager() as manager:
        outer = manager.dict()
        outer["inner"] = manager.list([1])
        outer["inner"].append(2)
        assert outer["inner"][:] == [1, 2]


def test_a_proxy_raises_an_error_after_the_end_of_its_manager() -> None:
    with context.Manager() as manager:
        kept = manager.list()
    with pytest.raises((ConnectionError, EOFError)):
        kept.append(1)
