"""The memory and number of keys of a dictionary's managers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dragon.runtime.nodes import node_at
from dragon.shards.entries import Settings

__all__ = ["DDictManagerStats", "stats_of"]


@dataclass(frozen=True)
class DDictManagerStats:
    """The state of one manager. Memory is in bytes.

    Attributes:
        manager_id: the number of the manager.
        hostname: the host name of its node.
        total_bytes: the size of its memory.
        total_used_bytes: the used part.
        pool_free_space: the free part.
        pool_utilization: the used part in percent.
        num_keys: the number of keys in the handle's checkpoint.
        free_blocks: {free bytes: 1}, because the memory is not divided into blocks that could be counted.
        max_pool_allocations: always 0.
        max_pool_allocations_used: always 0.
        current_pool_allocations_used: the number of entries that the manager stores.
        timekeeper_stats: always empty.

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
    """Return the stats of a shard from its settings, its usage and its number of keys."""
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
