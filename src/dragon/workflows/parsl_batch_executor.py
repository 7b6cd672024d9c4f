"""A Parsl executor on workers of the run, for many short apps."""

from __future__ import annotations

from typing import Any

from dragon.infrastructure.policy import Policy
from dragon.workflows.parsl_executor import DragonPoolExecutor

__all__ = ["DragonBatchPoolExecutor"]


class DragonBatchPoolExecutor(DragonPoolExecutor):
    """Runs apps in a pool of worker processes, as DragonPoolExecutor does.

    Args:
        batch_size, work_get_timeout, max_num_timeouts: dragonhpc's options for grouping apps. They are accepted and
            have no effect: each app is sent to a worker separately and at once, which is as fast, and an app that ends
            its worker does not affect others.

    The others are those of DragonPoolExecutor.

    Examples:
        >>> import parsl
        >>> from dragon.workflows.parsl_batch_executor import DragonBatchPoolExecutor
        >>> config = parsl.Config([DragonBatchPoolExecutor("batch", max_processes=2)], initialize_logging=False)
        >>> with parsl.load(config):
        ...     parsl.python_app(executors=["batch"])(divmod)(7, 2).result()
        (3, 1)
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
