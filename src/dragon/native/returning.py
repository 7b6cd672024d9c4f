"""How workers of pools and batches return what their tasks gave, and how much memory that may take."""

from __future__ import annotations

import time
from typing import Any

from dragon import _core
from dragon.runtime.handle import Channel
from dragon.runtime.run import this_run

__all__ = ["MEMORY_PAUSE_S", "MOST_WITHOUT_MEMORY_S", "channel_of_results", "most_mebibytes", "put_result"]

_MOST_MEBIBYTES = 128
_SHARE = 8  # at most one part of so many of the run's memory
MOST_WITHOUT_MEMORY_S = 5.0  # seconds after which a task or result for which there is no memory becomes an error
MEMORY_PAUSE_S = 0.05  # seconds between two attempts to put one


def most_mebibytes() -> int:
    """Return the MiB that the results of a pool, or the results and the waiting tasks of a batch each, may take in the
    run's memory: 128, and at most an eighth of it."""
    this_run()
    return min(_MOST_MEBIBYTES, max(1, int(_core.usage()["limit"]) // _SHARE >> 20))


def channel_of_results() -> Channel:
    """Return a channel for results, at which workers wait while it has as many bytes as it may have."""
    return Channel(mebibytes=most_mebibytes())


def put_result(results: Channel, message: Any) -> None:
    """Put a result; if the run's memory is full, retry while results that are collected free some.

    Raises MemoryError after five seconds: the result is too large, or the memory is full of something else.
    """
    deadline: float | None = None
    while True:
        try:
            results.put(message)
            return
        except MemoryError:
            if deadline is None:
                deadline = time.monotonic() + MOST_WITHOUT_MEMORY_S
            if time.monotonic() > deadline:
                raise
            time.sleep(MEMORY_PAUSE_S)
