"""The state of a process after its sentinel has signalled its end."""

from __future__ import annotations

import multiprocessing as mp
import os
from multiprocessing.connection import wait

import dragon  # noqa: F401 - registers the start method

context = mp.get_context("dragon")


def test_the_exit_code_is_known_once_the_sentinel_is_ready() -> None:
    for code in range(1, 100):
        process = context.Process(target=os._exit, args=(code,))
        process.start()
        wait([process.sentinel])
        assert (process.exitcode, process.is_alive()) == (code, False)
