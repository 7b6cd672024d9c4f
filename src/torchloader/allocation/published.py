"""The two published variants of the worker allocation algorithm, unchanged, including their faults.

Both use one budget, the sum over all nodes, and may exceed it: see each class. To use one on real nodes wrap it in
`WithinBudget`, as the catalogue of policies does.

A Data-Loader Tunable Knob to Shorten GPU Idleness for Distributed Deep Learning, IEEE CLOUD 2022.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchloader.allocation.problem import Allocation, Demand

__all__ = ["Fill", "Trim"]


def _wanted(demand: Demand) -> float:
    """Return the workers per device that load as fast as the device computes, extrapolated from the rate of one
    worker."""
    return demand.curve.ceiling / demand.curve.loading(1)


@dataclass(frozen=True, slots=True)
class Trim:
    """Gives each job what it needs plus one; over budget, those with the most slack give back a worker in turn.

    Slack is the number of workers, over all devices, that a job has beyond its need, rounded up; among equals the
    largest demand gives first. No job falls below one worker per device, so the allocation can stay over budget; and as
    nodes are not distinguished, a single node can be over-subscribed at any time.
    """

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
    """Deals scarce cores to the fastest jobs first, and abundant ones in proportion to what jobs need.

    A job needs two workers more than it uses. Where cores are scarce, each job in turn, the fastest device first, gets
    one worker per device until it has what it needs or there are no cores; the last one may take more than there are.
    Where cores are abundant all are given out, useful or not, and the remainder of rounding is dealt in turn.
    """

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
