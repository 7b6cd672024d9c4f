"""The allocation policies by name: those that were published and ours, with the allocations that they may choose."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from torchloader.allocation.greedy import Even, Fifo, PerDevice, Static, Table
from torchloader.allocation.policies import Best, MaxMin
from torchloader.allocation.problem import (
    BUSY,
    COMPLETION,
    PROPORTIONAL,
    TOTAL,
    Allocation,
    Demand,
    Policy,
    by_arrival,
    used,
)


def _wanted(demand: Demand) -> float:
    """Return the workers per device that load as fast as the device computes, extrapolated from the rate of one
    worker."""
    return demand.curve.ceiling / demand.curve.loading(1)


@dataclass(frozen=True, slots=True)
class Trim:
    """Gives each job what it needs plus one; over budget, those with the most slack give back a worker in turn. Slack
    is the number of workers, over all devices, that a job has beyond its need, rounded up; among equals the largest
    demand gives first. No job falls below one worker per device, so the allocation can stay over budget; and as nodes
    are not distinguished, a single node can be over-subscribed at any time."""

    name: str = "waa-trim"

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        needs = {demand.name: math.floor(_wanted(demand)) + 1 for demand in demands}
        order = sorted(
            demands,
            key=lambda demand: (
                -math.ceil(demand.size * (needs[demand.name] - _wanted(demand))),
                -demand.size * needs[demand.name],
                demand.arrival,
                demand.name,
            ),
        )
        over = sum(demand.size * needs[demand.name] for demand in demands) - sum(cores.values())
        while over > 0 and any(need > 1 for need in needs.values()):
            for demand in order:
                if over > 0 and needs[demand.name] > 1:
                    needs[demand.name] -= 1
                    over -= demand.size
        return needs


@dataclass(frozen=True, slots=True)
class Fill:
    """Deals scarce cores to the fastest jobs first, and abundant ones in proportion to what jobs need. A job needs two
    workers more than it uses. Where cores are scarce, each job in turn, the fastest device first, gets one worker per
    device until it has what it needs or there are no cores; the last one may take more than there are. Where cores are
    abundant all are given out, useful or not, and the remainder of rounding is dealt in turn."""

    name: str = "waa-fill"

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        needs = {demand.name: math.floor(_wanted(demand)) + 2 for demand in demands}
        order = sorted(demands, key=lambda demand: (-demand.curve.ceiling, demand.arrival, demand.name))
        left = sum(cores.values())
        asked = sum(demand.size * needs[demand.name] for demand in demands)
        if asked > left:
            shares = dict.fromkeys(needs, 0)
            while left > 0 and shares != needs:
                for demand in order:
                    if left > 0 and shares[demand.name] < needs[demand.name]:
                        shares[demand.name] += 1
                        left -= demand.size
            return shares
        shares = {name: left * need // asked for name, need in needs.items()} if asked else {}
        left -= sum(demand.size * shares[demand.name] for demand in demands)
        while left > 0 and demands:
            for demand in order:
                if left > 0:
                    shares[demand.name] += 1
                    left -= demand.size
        return shares


@dataclass(frozen=True, slots=True)
class WithinBudget:
    """A policy whose allocations are corrected to fit the nodes. Each job gets its minimum in the order of arrival
    while cores suffice, else none; none gets more than its maximum. On an over-subscribed node the job with the most
    workers per device gives one back, repeatedly, until all fit; among equals the latest.

    Args:
        policy: the policy to correct.
    """

    policy: Policy

    @property
    def name(self) -> str:
        """The name of the policy."""
        return self.policy.name

    def __call__(self, demands: Sequence[Demand], cores: Mapping[str, int]) -> Allocation:
        wanted = self.policy(demands, cores)
        least = Table(demands, cores).allocation()
        allocation = {}
        for demand in demands:
            most = demand.maximum if demand.maximum is not None else max(wanted[demand.name], demand.minimum)
            bounded = min(max(wanted[demand.name], demand.minimum), most)
            allocation[demand.name] = bounded if least[demand.name] else 0
        taken = used(demands, allocation)
        ordered = by_arrival(demands)
        for node in sorted(taken):
            here = [demand for demand in ordered if node in demand.devices]
            while taken[node] > cores.get(node, 0):
                giver = max(
                    (place for place, demand in enumerate(here) if allocation[demand.name] > least[demand.name]),
                    key=lambda place: (allocation[here[place].name], place),
                )
                allocation[here[giver].name] -= 1
                for other, devices in here[giver].devices.items():
                    taken[other] -= devices
        return allocation


_ALL: list[Policy] = [
    Best("proportional", PROPORTIONAL),
    Best("total", TOTAL),
    Best("busy", BUSY),
    MaxMin(),
    Best("jct", COMPLETION),
    WithinBudget(Fill()),
    WithinBudget(Trim()),
    Even(),
    PerDevice(),
    WithinBudget(Static()),
    Fifo(),
]
POLICIES: dict[str, Policy] = {each.name: each for each in _ALL}
"""All policies by name, each corrected to stay within the cores of every node."""


_GROUP = "torchloader.policies"


def added(what: str, group: str, name: str, own: Iterable[str]) -> Any:
    """Return what an installed package adds by an entry point of that name, an object."""
    for point in entry_points(group=group, name=name):
        return point.load()
    names = ", ".join(dict.fromkeys([*own, *entry_points(group=group).names]))
    raise ValueError(f"there is no {what} {name!r}; the {group.rpartition('.')[2]} are {names}")


def policies() -> list[str]:
    """Return the names of all policies, those of installed packages last."""
    return list(dict.fromkeys([*POLICIES, *sorted(entry_points(group=_GROUP).names)]))


def policy(name: str) -> Policy:
    """Return the policy of that name, of this package or of an installed one (`torchloader.policies`)."""
    return POLICIES[name] if name in POLICIES else WithinBudget(added("policy", _GROUP, name, POLICIES))
