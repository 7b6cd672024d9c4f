"""Simulated nodes, which every machine has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from conftest import Site
from peers import dragon

__all__ = ["Simulated", "simulated"]


class Simulated:
    """Three nodes in rehearsal."""

    nodes = ("node-0", "node-1", "node-2")

    def start(self, site: Site, *words: str | Path) -> subprocess.Popen[str]:
        return site.start(*dragon("--nodes", "3", *words))

    def leftovers(self) -> list[str]:
        return []  # all that they leave is this machine's


@pytest.fixture(scope="session")
def simulated() -> Simulated:
    """Three nodes."""
    return Simulated()
