"""Policies that do not use the jobs' throughput, as in schedulers without a model of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchloader.allocation.greedy import Table, deal
from torchloader.allocation.problem import Allocation, Demand, by_arrival


@dataclass(frozen=True, slots=True)
class Even:
    """Gives each job the same number of cores, as nearly as steps and nodes allow, until all are used."""

    name: str = "even"

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        table = Table(demands, cores)
        deal(table, lambda demand, workers: 1 / (workers * demand.size), range(len(table.demands)))
        return table.allocation()


@dataclass(frozen=True, slots=True)
class PerDevice:
    """Gives each device the same number of cores."""

    name: str = "gpu-proportional"

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        table = Table(demands, cores)
        deal(table, lambda _, workers: 1 / workers, range(len(table.demands)))
        return table.allocation()


@dataclass(frozen=True, slots=True)
class Static:
    """Gives each job what it requested, whether or not the nodes have it."""

    name: str = "static"

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        return {demand.name: demand.requested for demand in demands}


@dataclass(frozen=True, slots=True)
class Fifo:
    """Gives each job what it requested, in the order of arrival; the first that does not fit waits, and so do all after
    it.

    A job that requests more than an empty node has gets what that node has.
    """

    name: str = "fifo"

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        free = dict(cores)
        allocation = dict.fromkeys((demand.name for demand in demands), 0)
        for demand in by_arrival(demands):
            room = min(cores.get(node, 0) // devices for node, devices in demand.devices.items())
            workers = max(demand.minimum, min(demand.requested, demand.maximum or demand.requested, room))
            if any(free.get(node, 0) < devices * workers for node, devices in demand.devices.items()):
                break
            for node, devices in demand.devices.items():
                free[node] -= devices * workers
            allocation[demand.name] = workers
        return allocation
