"""Where the parts of a batch are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["BatchTopology"]


@dataclass(frozen=True)
class BatchTopology:
    """The nodes of a batch. There is a pool of workers for each node.

    Examples:
        >>> from dragon.workflows.batch import Batch
        >>> with Batch(workers_per_node=2) as batch:
        ...     topology = batch.topology()
        >>> topology.total_workers == 2 * topology.total_nodes
        True
    """

    total_nodes: int
    scheduler_hostname: str
    manager_hostnames: Sequence[str]
    pool_hostnames: Sequence[Sequence[str]]
    workers_per_pool: Sequence[int]

    @property
    def total_managers(self) -> int:
        """The pools, and the scheduler."""
        return len(self.manager_hostnames) + 1

    @property
    def total_workers(self) -> int:
        """The workers of all pools."""
        return sum(self.workers_per_pool)

    def __str__(self) -> str:
        pools = ", ".join(
            f"{' '.join(hosts)}: {workers} workers"
            for hosts, workers in zip(self.pool_hostnames, self.workers_per_pool, strict=True)
        )
        return f"batch on {self.total_nodes} nodes, scheduler on {self.scheduler_hostname}; {pools}"
