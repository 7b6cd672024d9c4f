"""Shared memory that MPI libraries leave behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dragon.agent.mpi.segments import remove_segments


@pytest.mark.parametrize("name", ["mpich_shm_", "sm_segment.", "vader_segment.", "pmix-gds-shmem2.node."])
def test_only_segments_that_no_process_uses_are_removed(name: str) -> None:
    since = time.time() - 1
    unused, used = (Path("/dev/shm", f"{name}{os.getpid()}-{which}") for which in ("unused", "used"))
    try:
        unused.touch()
        with used.open("w"):
            removed = remove_segments(since)
            assert unused.name in removed
            assert used.name not in removed
            assert used.exists()
            assert not unused.exists()
    finally:
        unused.unlink(missing_ok=True)
        used.unlink(missing_ok=True)
