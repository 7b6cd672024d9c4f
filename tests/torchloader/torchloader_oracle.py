"""Exact solutions of small allocation problems, random problems, and checks of simulated events."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from torchloader.allocation.problem import PROPORTIONAL, Allocation, Demand, Objective
from torchloader.prediction.curve import Curve
from torchloader.scheduling.application import Node
from torchloader.scheduling.log import Records
from torchloader.simulation.result import Result


def worth(demands: Sequence[Demand], allocation: Allocation, objective: Objective = PROPORTIONAL) -> float:
    return math.fsum(objective.value(d, d.curve.throughput(allocation[d.name])) for d in demands)


def choices(demand: Demand, cores: Mapping[str, int]) -> range:
    """Return the numbers of workers per device that a job could have, except those that would not make it faster."""
    most = min(cores[node] // devices for node, devices in demand.devices.items())
    most = min(most, demand.maximum or most)
    return range(demand.minimum, max(demand.minimum, min(most, demand.curve.enough(most))) + 1)


def one_node(demands: Sequence[Demand], cores: int, objective: Objective = PROPORTIONAL) -> float:
    """Return the best sum of the objective on one node, by dynamic programming over its cores."""
    best = np.zeros(cores + 1)
    for demand in demands:
        after = np.full(cores + 1, -np.inf)
        for workers in choices(demand, dict.fromkeys(demand.devices, cores)):
            taken = workers * demand.size
            if taken <= cores:
                gained = best[: cores + 1 - taken] + objective.value(demand, demand.curve.throughput(workers))
                after[taken:] = np.maximum(after[taken:], gained)
        best = after
    return float(best[cores])


def several_nodes(demands: Sequence[Demand], cores: Mapping[str, int], objective: Objective = PROPORTIONAL) -> float:
    """Return the best sum of the objective over several nodes, as an integer programme with one choice for each job."""
    values, rows, columns, entries = [], [], [], []
    nodes = {node: len(demands) + place for place, node in enumerate(cores)}
    for job, demand in enumerate(demands):
        for workers in choices(demand, cores):
            column = len(values)
            values.append(objective.value(demand, demand.curve.throughput(workers)))
            rows.append(job), columns.append(column), entries.append(1.0)
            for node, devices in demand.devices.items():
                rows.append(nodes[node]), columns.append(column), entries.append(float(devices * workers))
    matrix = csr_array((entries, (rows, columns)), shape=(len(demands) + len(cores), len(values)))
    lower = [1.0] * len(demands) + [0.0] * len(cores)
    upper = [1.0] * len(demands) + [float(count) for count in cores.values()]
    found = milp(
        -np.array(values),
        constraints=LinearConstraint(matrix, lower, upper),
        integrality=np.ones(len(values)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0.0},
    )
    assert found.success, found.message
    return -float(found.fun)


def problem(
    seed: int, nodes: int, steps: Sequence[int], jobs: tuple[int, int] = (2, 10), spread: float = 0.0
) -> tuple[list[Demand], dict[str, int]]:
    """Return a random problem in which the minimum of every job fits.

    Args:
        seed: The seed of the random generator.
        nodes: The number of nodes.
        steps: The numbers of devices on a node that a job may have.
        jobs: The minimum and the maximum number of jobs.
        spread: The probability that a job is on more than one node.
    """
    chance = random.Random(seed)
    names = [f"node{number}" for number in range(nodes)]
    demands = []
    for number in range(chance.randint(*jobs)):
        wide = nodes > 1 and chance.random() < spread
        where = chance.sample(names, chance.randint(2, nodes) if wide else 1)
        devices = chance.choice(steps)
        ceiling = chance.uniform(50, 2000)
        service = chance.uniform(0.4, 16) / ceiling
        curve = Curve(ceiling, service, chance.choice([0.0, chance.uniform(0, 0.5) / ceiling]))
        maximum = chance.choice([None, None, chance.randint(1, 8)])
        demands.append(
            Demand(
                f"job{number}", dict.fromkeys(where, devices), curve, chance.choice([1.0, 0.5, 2.0]), maximum=maximum
            )
        )
    needed = {node: sum(d.devices.get(node, 0) for d in demands) for node in names}
    return demands, {node: max(1, needed[node] + chance.randint(0, 6 * needed[node] + 4)) for node in names}


def replayed(result: Result, nodes: Mapping[str, Node], counts_cores: bool = True) -> Iterator[Records]:
    """Yield the records after all that happens at once, in which no device or core belongs to two jobs."""
    records = Records()
    for event, after in zip(result.events, [*result.events[1:], None], strict=True):
        records.again(event)
        if after is not None and after.time == event.time:
            continue
        for node, has in nodes.items():
            here = [each for each in records.values() if node in each.placement]
            devices = [device for each in here for device in each.placement[node]]
            assert len(devices) == len(set(devices))
            assert set(devices) <= set(has.devices)
            assert not counts_cores or sum(each.workers * len(each.placement[node]) for each in here) <= has.cores
        yield records
