"""The state of a run at one moment."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from dragon.infrastructure.metrics import Lifetime, RunState
from dragon.runtime.protocol.telemetry import Lifetimes, Query, StateOfRun
from dragon.web.ask import Ask

_HISTORY_S = 60.0
_NEWEST = 15.0

# The metrics of each table.
OF_NODES = ("cpu_percent", "used_RAM", "network_sent", "network_received", "arena_used", "num_running_processes")
OF_GPUS = ("DeviceUtilization", "DeviceMemoryUtilization", "DevicePowerUsage", "DeviceTemperature")
OF_PROCESSES = ("process_cpu_percent", "process_memory", "process_state")
OF_QUEUES = ("queue_depth", "queue_puts", "queue_gets", "queue_waiting")
OF_POOLS = ("pool_tasks_waiting", "pool_tasks_running", "pool_tasks_done", "pool_workers")
# The metrics whose history is shown; for the others the newest value is enough.
_WITH_PAST = (*OF_NODES, *OF_GPUS, *OF_QUEUES, *OF_POOLS)


class Series(msgspec.Struct, array_like=True):
    """Values of one metric with one set of tags, by time in seconds since 1970."""

    metric: str
    tags: dict[str, str]
    times: list[float]
    values: list[float]


class Snapshot(msgspec.Struct):
    """The state of a run at one moment, `now` in seconds since 1970."""

    now: float
    run: RunState
    series: list[Series]
    lifetimes: list[Lifetime]


async def take(ask: Ask, now: float) -> Snapshot:
    """Ask a run for its state. Raises what `ask` raises."""

    async def query(metrics: Sequence[str], start: float, interval: float) -> list[Series]:
        records = await ask(Query(list(metrics), {}, start, math.inf, interval, "last"))
        return [Series(*record) for record in records]

    return Snapshot(
        now=now,
        run=await ask(StateOfRun()),
        series=[*await query(_WITH_PAST, now - _HISTORY_S, 1.0), *await query(OF_PROCESSES, now - _NEWEST, 0.0)],
        lifetimes=await ask(Lifetimes()),
    )
