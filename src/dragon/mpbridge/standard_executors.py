"""Corrects concurrent.futures.ProcessPoolExecutor with a "dragon" context.

Its workers start together at the first task, as with "fork": one that dies while submit() starts another one would end
the executor in the middle of that, which can hang (CPython issue 132969).

With `max_tasks_per_child` the standard library counts a worker as idle for each result that it sent, also once the
worker has ended, and starts no other in its place: the next task waits without end (CPython issue 115634). It also
checks for results before it checks for ended workers; a worker that sends its last result and ends in between counts as
failed.
"""

from __future__ import annotations

from concurrent.futures import process
from multiprocessing import connection
from typing import Any

_executor: Any = process.ProcessPoolExecutor
_manager: Any = process._ExecutorManagerThread
_standard_start = _executor._start_executor_manager_thread
_standard_adjust = _executor._adjust_process_count
_standard_wait = _manager.wait_result_broken_or_wakeup


def _start_executor_manager_thread(self: Any) -> None:
    if self._mp_context.get_start_method() == "dragon" and self._executor_manager_thread is None:
        # As with fork: all workers before the thread that ends them if one dies, which submit() would race with.
        self._safe_to_dynamically_spawn_children = False
        while len(self._processes) < self._max_workers:
            self._spawn_process()
    _standard_start(self)


def _adjust_process_count(self: Any) -> None:
    if self._max_tasks_per_child is None or self._mp_context.get_start_method() != "dragon":
        _standard_adjust(self)
    elif len(self._processes) < self._max_workers:
        self._spawn_process()


def _wait_result_broken_or_wakeup(self: Any) -> object:
    if getattr(self, "max_tasks_per_child", None) is not None:
        # Events that end this wait are seen by the standard wait, in whatever order it checks them.
        sentinels = [worker.sentinel for worker in list(self.processes.values())]
        connection.wait([self.result_queue._reader, self.thread_wakeup._reader, *sentinels])
    return _standard_wait(self)


def watch_executor(target: object) -> None:
    """Correct executors if `target`, which a new process runs, is the function of an executor's worker."""
    if target is process._process_worker:
        _executor._start_executor_manager_thread = _start_executor_manager_thread
        _executor._adjust_process_count = _adjust_process_count
        _manager.wait_result_broken_or_wakeup = _wait_result_broken_or_wakeup
