"""How full the managers of a dictionary are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dragon.runtime.nodes import node_at
from dragon.shards.entries import Settings

__all__ = ["DDictManagerStats", "stats_of"]


@dataclass(frozen=True)
class DDictManagerStats:
    """One manager. Memory is in bytes, `pool_utilization` in percent.

    Memory is not cut into blocks that could be counted: `free_blocks` is one piece of all that is free.

    Examples:
        >>> from dragon.data.ddict import DDict
        >>> with DDict(managers_per_node=2, n_nodes=1, total_mem=16 * 2**20) as ddict:
        ...     ddict["a"] = 1
        ...     [manager.manager_id for manager in ddict.stats], sum(manager.num_keys for manager in ddict.stats)
        ([0, 1], 1)
    """

    manager_id: int
    hostname: str
    total_bytes: int
    total_used_bytes: int
    pool_free_space: int
    pool_utilization: float
    num_keys: int
    free_blocks: dict[int, int] = field(default_factory=dict)
    max_pool_allocations: int = 0
    max_pool_allocations_used: int = 0
    current_pool_allocations_used: int = 0
    timekeeper_stats: dict[str, Any] = field(default_factory=dict)


def stats_of(settings: Settings, usage: dict[str, int], keys: int) -> DDictManagerStats:
    """From what a shard tells."""
    free = usage["total"] - usage["used"]
    return DDictManagerStats(
        settings.manager,
        node_at(settings.node).host_name,
        usage["total"],
        usage["used"],
        free,
        100 * usage["used"] / usage["total"],
        keys,
        {free: 1},
        current_pool_allocations_used=usage["entries"],
    )
