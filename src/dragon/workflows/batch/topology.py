"""The nodes and workers of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class BatchTopology:
    """The nodes of a batch. There is a pool of workers on each node.

    Attributes:
        total_nodes: the number of nodes.
        scheduler_hostname: the node of the process that made the batch.
        manager_hostnames: the nodes, one for each pool.
        pool_hostnames: the nodes of each pool.
        workers_per_pool: the number of workers of each pool.

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
        """The number of pools plus one for the scheduler."""
        return len(self.manager_hostnames) + 1

    @property
    def total_workers(self) -> int:
        """The number of workers of all pools."""
        return sum(self.workers_per_pool)

    def __str__(self) -> str:
        pools = ", ".join(
            f"{' '.join(hosts)}: {workers} workers"
            for hosts, workers in zip(self.pool_hostnames, self.workers_per_pool, strict=True)
        )
        return f"batch on {self.total_nodes} nodes, scheduler on {self.scheduler_hostname}; {pools}"
