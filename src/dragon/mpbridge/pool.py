"""multiprocessing.Pool."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from dragon.native import pool, results
from dragon.native.workers import WorkerProcess, work

__all__ = ["DragonPool", "Pool"]

_PATIENCE = 5.0


class ApplyResult(results.ApplyResult):
    timeout_error = multiprocessing.TimeoutError


class MapResult(results.MapResult):
    timeout_error = multiprocessing.TimeoutError


class IMapIterator(results.IMapIterator):
    timeout_error = multiprocessing.TimeoutError


class IMapUnorderedIterator(results.IMapUnorderedIterator):
    timeout_error = multiprocessing.TimeoutError


class Pool(pool.Pool):
    """multiprocessing.Pool with workers over all nodes of the run; its time-outs are multiprocessing.TimeoutError."""

    _apply_result: ClassVar[type[results.ApplyResult]] = ApplyResult
    _map_result: ClassVar[type[results.MapResult]] = MapResult
    _imap: ClassVar[type[results.IMapIterator]] = IMapIterator
    _imap_unordered: ClassVar[type[results.IMapUnorderedIterator]] = IMapUnorderedIterator

    def __init__(
        self,
        processes: int | None = None,
        initializer: Callable[..., Any] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: int | None = None,
        context: Any = None,
    ) -> None:
        self._ctx = context
        super().__init__(processes, initializer, initargs, maxtasksperchild)

    def terminate(self, patience: float = _PATIENCE) -> None:
        """End the workers now, those that heed no SIGTERM after `patience` seconds."""
        super().terminate(patience)

    def _starter(self, arguments: tuple[Any, ...]) -> Callable[[int], WorkerProcess]:
        context, wrap = self._ctx, self._wrap_exceptions

        def start(index: int) -> WorkerProcess:
            process = context.Process(target=work, args=(index, *arguments, wrap))
            process.name = process.name.replace("Process", "PoolWorker")
            process.daemon = True
            process.start()
            worker: WorkerProcess = process
            return worker

        return start


# As programs know them from dragonhpc.
DragonPool = Pool
