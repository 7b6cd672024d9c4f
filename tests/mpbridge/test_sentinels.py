"""The state of a process after its sentinel has signalled its end."""

from __future__ import annotations

import multiprocessing as mp
import os
from multiprocessing.connection import wait

import dragon  # noqa: F401 - registers the start method

context = mp.get_context("dragon")


def test_who_saw_its_end_at_the_sentinel_finds_its_exit_code() -> None:
    for code in range(1, 100):
        process = context.Process(target=os._exit, args=(code,))
        process.start()
        wait([process.sentinel])
        assert (process.exitcode, process.is_alive()) == (code, False)
