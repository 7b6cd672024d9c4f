"""Parsl executors on workers of the run."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from dragon.infrastructure.policy import Policy
from dragon.workflows.executor import DragonExecutor

try:
    from parsl.executors.base import ParslExecutor
    from parsl.executors.errors import UnsupportedFeatureError
    from parsl.utils import RepresentationMixin
except ModuleNotFoundError as error:
    message = "Dragon's executors for Parsl need it: pip install dragon-runtime[parsl]"
    raise ModuleNotFoundError(message, name="parsl") from error

__all__ = ["DragonParslExecutor", "DragonPoolExecutor"]


class DragonParslExecutor(ParslExecutor, RepresentationMixin):  # type: ignore[misc]
    """The base class of the executors for Parsl. They use the nodes of the run, and request no others."""

    def __init__(self, label: str, storage_access: list[Any] | None, working_dir: str | None) -> None:
        super().__init__()
        self.label = label
        self.storage_access = storage_access
        self.working_dir = working_dir

    def check(self, resource_specification: dict[str, Any]) -> None:
        """Raise UnsupportedFeatureError for any request of resources."""
        if resource_specification:
            raise UnsupportedFeatureError(", ".join(resource_specification), type(self).__name__, "")

    def scale_out(self, blocks: int = 1) -> list[str]:
        """Raise NotImplementedError: the nodes are those of the run."""
        raise NotImplementedError("the nodes are those of the run; start it on more of them")

    def scale_in(self, blocks: int) -> list[str]:
        """Raise NotImplementedError: the nodes are those of the run."""
        raise NotImplementedError("the nodes are those of the run; start it on fewer of them")

    def monitor_resources(self) -> bool:
        """Return False: a worker runs several tasks, and Parsl would start a process in each to monitor it."""
        return False


class DragonPoolExecutor(DragonParslExecutor):
    """Runs apps in a pool of worker processes, on all nodes of the run.

    Args:
        label: its name, by which apps choose it.
        max_processes: number of workers; ignored if `policy` is a list.
        storage_access, working_dir: as for Parsl's own executors.
        policy: where the workers run, as for DragonExecutor.

    Examples:
        >>> import parsl
        >>> from dragon.workflows.parsl_executor import DragonPoolExecutor
        >>> config = parsl.Config([DragonPoolExecutor("pool", max_processes=2)], initialize_logging=False)
        >>> with parsl.load(config):
        ...     parsl.python_app(executors=["pool"])(divmod)(7, 2).result()
        (3, 1)
    """

    def __init__(
        self,
        label: str = "dragon",
        max_processes: int = 2,
        storage_access: list[Any] | None = None,
        working_dir: str | None = None,
        policy: Policy | list[Policy] | None = None,
    ) -> None:
        super().__init__(label, storage_access, working_dir)
        self.max_processes = max_processes
        self.policy = policy
        self._pool: DragonExecutor | None = None

    def start(self) -> None:
        """Start the workers."""
        workers = None if isinstance(self.policy, list) else self.max_processes
        self._pool = DragonExecutor(workers, policy=self.policy)

    def submit(
        self, func: Callable[..., Any], resource_specification: dict[str, Any], *args: object, **kwargs: object
    ) -> Future[Any]:
        """Submit a call, and return its future.

        Its `parsl_resource_specification` may have `cores`, `gpus`, and `memory` in MB. Raises UnsupportedFeatureError
        for others, ValueError for what no node has.
        """
        asked = {**resource_specification}
        cpus, gpus, megabytes = asked.pop("cores", None), asked.pop("gpus", 0), asked.pop("memory", 0)
        self.check(asked)
        return self.pool.options(cpus=cpus, gpus=gpus, memory=megabytes << 20).submit(func, *args, **kwargs)

    @property
    def pool(self) -> DragonExecutor:
        """The executor of the workers. Raises RuntimeError before start()."""
        if self._pool is None:
            raise RuntimeError(f"the executor {self.label!r} was not started; Parsl does that when it is loaded")
        return self._pool

    def shutdown(self) -> None:
        """End the workers when they have done what was submitted."""
        if self._pool is not None:
            self._pool.shutdown()
        super().shutdown()
