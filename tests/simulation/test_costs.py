"""No place of a run costs much more because the run is larger."""

from __future__ import annotations

import math

import pytest

from simulation.growth import Costs, measured

FEW, MANY = 32, 128
SLACK = 1.3
OPERATIONS = ("start", "ask all", "start a group", "end a group", "name an object", "lose a node", "end")


@pytest.fixture(scope="module")
def costs() -> tuple[Costs, Costs]:
    return measured(FEW), measured(MANY)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_busiest_place_costs_at_most_n_log_n(costs: tuple[Costs, Costs], operation: str) -> None:
    few, many = (each[operation] for each in costs)
    growth = SLACK * MANY * math.log(MANY) / (FEW * math.log(FEW))
    for place in ("front end", "busiest node"):
        for what, count in few[place].items():
            assert many[place][what] <= growth * count, (place, what, count)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_most_nodes_do_the_same_in_a_larger_run(costs: tuple[Costs, Costs], operation: str) -> None:
    few, many = (each[operation]["median node"] for each in costs)
    for what in ("pieces", "calls"):  # the bytes contain the list of the nodes
        assert many[what] <= SLACK * few[what], what
