"""The objects that a process keeps for its run, used by several threads at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dragon.runtime.run import this_run


@pytest.fixture
def restless() -> Iterator[None]:
    """Switch between threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("restless")
def test_threads_that_use_the_zygote_at_once_share_one_socket() -> None:
    run = this_run()
    with ThreadPoolExecutor(8) as threads:
        for _ in range(500):
            run.close()
            ways = [asked.result() for asked in [threads.submit(run.zygote_socket) for _ in range(8)]]
            assert all(way is ways[0] and way.fileno() >= 0 for way in ways)
