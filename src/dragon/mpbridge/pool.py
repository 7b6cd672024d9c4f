"""multiprocessing.Pool for the start method "dragon"."""

from __future__ import annotations

import multiprocessing
import multiprocessing.pool
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from dragon.mpbridge.process import PoolWorker
from dragon.native import pool, results
from dragon.native.workers import work

if TYPE_CHECKING:
    from dragon.native.feeding import WorkerProcess

# Programs recognize results and pools by the standard library's classes; all their methods are replaced.
mp_pool: Any = multiprocessing.pool

_KILL_DELAY_S = 5.0  # seconds


class ApplyResult(results.ApplyResult, mp_pool.ApplyResult):  # type: ignore[misc]
    timeout_error = multiprocessing.TimeoutError


class MapResult(results.MapResult, mp_pool.MapResult):  # type: ignore[misc]
    timeout_error = multiprocessing.TimeoutError


class IMapIterator(results.IMapIterator, mp_pool.IMapIterator):  # type: ignore[misc]
    timeout_error = multiprocessing.TimeoutError


class IMapUnorderedIterator(results.IMapUnorderedIterator, mp_pool.IMapUnorderedIterator):  # type: ignore[misc]
    timeout_error = multiprocessing.TimeoutError


class Pool(pool.Pool, mp_pool.Pool):  # type: ignore[misc]
    """multiprocessing.Pool with workers on all nodes of the run. Its timeouts raise multiprocessing.TimeoutError."""

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
        context: object = None,
    ) -> None:
        self._ctx = context
        super().__init__(processes, initializer, initargs, maxtasksperchild)

    def terminate(self, patience: float = _KILL_DELAY_S) -> None:
        """End the workers now: by SIGTERM, and after `patience` seconds by SIGKILL."""
        super().terminate(patience)

    @staticmethod
    def _start_worker(policy: object, arguments: tuple[Any, ...]) -> WorkerProcess:
        process = PoolWorker(target=work, args=arguments)
        process.name = process.name.replace("PoolWorker", "DragonPoolWorker")
        process.daemon = True
        process.start()
        return process


# dragonhpc's name.
DragonPool = Pool
