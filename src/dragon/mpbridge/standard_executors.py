"""concurrent.futures.ProcessPoolExecutor on a context of ours, where it gives up workers after some tasks.

With `max_tasks_per_child` the standard library counts a worker as idle for each result that it gave, also once that
worker has ended, and starts no other in its place: the next task waits for ever (CPython issue 115634).
"""

from __future__ import annotations

from concurrent.futures import process
from typing import Any

__all__ = ["watch_executor"]

_executor: Any = process.ProcessPoolExecutor
_standard = _executor._adjust_process_count


def _adjust_process_count(self: Any) -> None:
    if self._max_tasks_per_child is None or self._mp_context.get_start_method() != "dragon":
        _standard(self)
    elif len(self._processes) < self._max_workers:
        self._spawn_process()


def watch_executor(target: Any) -> None:
    """Called before a process is started, with what it runs: workers of an executor are replaced from now on."""
    if target is process._process_worker:
        _executor._adjust_process_count = _adjust_process_count
