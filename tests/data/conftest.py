"""Dictionaries over all nodes of the run in which the tests are run, which may be one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dragon.data.ddict import DDict
from dragon.native.machine import System

Make = Callable[..., DDict]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make dictionaries that are destroyed at the end."""
    made: list[DDict] = []

    def make_one(managers_per_node: int = 2, total_mem: int = 64 * 2**20, **options: Any) -> DDict:
        made.append(DDict(managers_per_node, System().nnodes, total_mem, **options))
        return made[-1]

    yield make_one
    for ddict in made:
        ddict.destroy()


@pytest.fixture
def ddict(make: Make) -> DDict:
    """One with two managers on each node."""
    return make()
