"""Corrects any allocation to one that the nodes can carry out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchloader.allocation.greedy import Table
from torchloader.allocation.problem import Allocation, Demand, Policy, by_arrival, used

__all__ = ["WithinBudget"]


@dataclass(frozen=True, slots=True)
class WithinBudget:
    """A policy whose allocations are corrected to fit the nodes.

    Each job gets its minimum in the order of arrival while cores suffice, else none; none gets more than its maximum.
    On an over-subscribed node the job with the most workers per device gives one back, repeatedly, until all fit; among
    equals the latest.

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
