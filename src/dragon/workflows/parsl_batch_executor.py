"""Parsl's tasks on workers of the run, several at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from dragon.infrastructure.policy import Policy
from dragon.workflows.batch.outcome import Failure, Outcome, Value, pack
from dragon.workflows.parsl_executor import DragonPoolExecutor

__all__ = ["DragonBatchPoolExecutor"]


class _Item(NamedTuple):
    future: Future[Any]
    call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class DragonBatchPoolExecutor(DragonPoolExecutor):
    """Runs apps in a pool of worker processes and sends them `batch_size` at a time: for many that are short.

    Args:
        batch_size: apps that go to a worker together.
        work_get_timeout, max_num_timeouts: fewer go when none has come for the one times the other, in seconds.

    The others are those of DragonPoolExecutor.
    """

    def __init__(
        self,
        label: str = "dragon_batch",
        max_processes: int = 2,
        storage_access: list[Any] | None = None,
        working_dir: str | None = None,
        batch_size: int = 4,
        work_get_timeout: float = 0.1,
        max_num_timeouts: int = 4,
        policy: Policy | list[Policy] | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        super().__init__(label, max_processes, storage_access, working_dir, policy)
        self.batch_size = batch_size
        self.work_get_timeout = work_get_timeout
        self.max_num_timeouts = max_num_timeouts
        self._items: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._collect, name="dragon-parsl-batches", daemon=True)

    def start(self) -> None:
        """Start the workers."""
        super().start()
        self._thread.start()

    def submit(
        self, func: Callable[..., Any], resource_specification: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Future[Any]:
        """Have it called. Raises UnsupportedFeatureError for a resource specification."""
        self.check(resource_specification)
        future: Future[Any] = Future()
        self._items.put(_Item(future, (func, args, kwargs)))
        return future

    def _collect(self) -> None:
        items: list[_Item] = []
        while True:
            try:
                wait = self.work_get_timeout * self.max_num_timeouts if items else None
                item = self._items.get(timeout=wait)
            except queue.Empty:
                self._send(items)
                items = []
                continue
            if item is None:
                self._send(items)
                return
            items.append(item)
            if len(items) == self.batch_size:
                self._send(items)
                items = []

    def _send(self, items: list[_Item]) -> None:
        items = [item for item in items if item.future.set_running_or_notify_cancel()]
        if not items:
            return
        try:
            together = self.pool.submit(_call_each, [item.call for item in items])
        except Exception as error:
            for item in items:
                item.future.set_exception(error)
            return
        together.add_done_callback(lambda done: _settle(items, done))

    def shutdown(self) -> None:
        """End the workers when they have done what was submitted."""
        if self._thread.is_alive():
            self._items.put(None)
            self._thread.join()
        super().shutdown()


def _call_each(calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]) -> list[Outcome]:
    results: list[Outcome] = []
    for function, args, kwargs in calls:
        try:
            results.append(Value(pack(function(*args, **kwargs))))
        except Exception as error:
            results.append(Failure.of(error, with_traceback=True))
    return results


def _settle(items: list[_Item], together: Future[list[Outcome]]) -> None:
    lost = together.exception()
    for index, (future, _) in enumerate(items):
        try:
            if lost is not None:
                raise lost
            value = together.result()[index].get()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(value)
