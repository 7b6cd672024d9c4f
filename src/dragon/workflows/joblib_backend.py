"""A joblib backend on workers of the run: importing this module registers the backend "dragon"."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from dragon.infrastructure.generic import V
from dragon.native.machine import cpu_count
from dragon.workflows.executor import DragonExecutor

try:
    from joblib import register_parallel_backend
    from joblib.parallel import AutoBatchingMixin, ParallelBackendBase
except ModuleNotFoundError as error:
    message = "dragon.workflows.joblib_backend needs joblib: pip install dragon-runtime[joblib]"
    raise ModuleNotFoundError(message, name="joblib") from error

__all__ = ["DragonBackend"]


class DragonBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """Runs the calls of joblib.Parallel in worker processes, on all nodes of the run.

    Accepts the options of DragonExecutor by name: `parallel_config(backend="dragon", policy=...)`. With n_jobs=-1 there
    is one worker for each CPU of the run.

    Examples:
        >>> import joblib
        >>> import dragon.workflows.joblib_backend
        >>> with joblib.parallel_config(backend="dragon", n_jobs=2):
        ...     joblib.Parallel()(joblib.delayed(pow)(x, 2) for x in range(4))
        [0, 1, 4, 9]
    """

    supports_retrieve_callback = True
    supports_sharedmem = False
    uses_threads = False
    default_n_jobs = -1

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self._executor: DragonExecutor | None = None

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of workers for that number of jobs. Raises ValueError for 0."""
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            n_jobs = self.default_n_jobs
        return n_jobs if n_jobs > 0 else max(1, cpu_count() + 1 + n_jobs)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **options: object) -> int:
        """Start the workers, and return their number."""
        self.parallel = parallel
        # Options that joblib adds for its own pools are ignored.
        own = {key: value for key, value in {**self.backend_kwargs, **options}.items() if key in _OPTIONS}
        workers = self.effective_n_jobs(n_jobs)
        self._executor = DragonExecutor(workers, **own)
        return workers

    def submit(self, func: Callable[[], Any], callback: Callable[[Any], Any] | None = None) -> Future[Any]:
        """Submit a call; `callback` is called with the future when it has ended."""
        assert self._executor is not None
        future = self._executor.submit(func)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[V]) -> V:
        """Return what a call returned, or raise what it raised."""
        return out.result()

    def terminate(self) -> None:
        """End the workers, and cancel calls that have not begun."""
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)
            self._executor = None
            self.reset_batch_stats()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End the workers without waiting for their calls; with `ensure_ready` start new ones."""
        if self._executor is not None:
            self._executor.terminate_workers()
            self._executor = None
        if ensure_ready:
            self.configure(n_jobs=self.parallel.n_jobs, parallel=self.parallel)


_OPTIONS = {"initializer", "initargs", "policy", "retries", "retry_on", "backoff"}

register_parallel_backend("dragon", DragonBackend)
