"""What is known of a run at one moment."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from dragon.infrastructure.metrics import Lifetime, RunState

__all__ = ["NEWEST", "WITH_PAST", "Series", "Snapshot", "take"]

_PAST = 60.0  # seconds
_NEWEST = 15.0

# Metrics of which the tables show how they went, and those of which they show the newest value alone.
WITH_PAST = (
    *("cpu_percent", "used_RAM", "network_sent", "network_received", "arena_used", "num_running_processes"),
    *("DeviceUtilization", "DeviceMemoryUtilization", "DevicePowerUsage", "DeviceTemperature"),
    *("queue_depth", "queue_puts", "queue_gets"),
    *("pool_tasks_waiting", "pool_tasks_running", "pool_tasks_done", "pool_workers"),
)
NEWEST = ("process_cpu_percent", "process_memory", "process_state", "queue_waiting")


class Series(msgspec.Struct, array_like=True):
    """Values of one metric with one set of tags, by time in seconds since 1970."""

    metric: str
    tags: dict[str, str]
    times: list[float]
    values: list[float]


class Snapshot(msgspec.Struct):
    """What is known of a run at one moment."""

    now: float
    run: RunState
    series: list[Series]
    lifetimes: list[Lifetime]


async def take(ask: Callable[[str, dict[str, Any]], Awaitable[Any]], now: float) -> Snapshot:
    """Ask a run. Raises what `ask` raises."""

    async def query(metrics: Sequence[str], start: float, interval: float) -> Any:
        between = {"start": start, "end": math.inf, "interval": interval}
        return await ask("telemetry.query", {"metrics": metrics, "tags": {}, "aggregate": "last", **between})

    told = {
        "now": now,
        "run": await ask("telemetry.run", {}),
        "series": [*await query(WITH_PAST, now - _PAST, 1.0), *await query(NEWEST, now - _NEWEST, 0.0)],
        "lifetimes": await ask("telemetry.lifetimes", {"since": 0.0}),
    }
    return msgspec.convert(told, Snapshot)
