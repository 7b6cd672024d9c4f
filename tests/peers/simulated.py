"""Simulated nodes, which are available on every machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from conftest import Site
from peers import dragon

__all__ = ["Simulated", "simulated"]


class Simulated:
    """Three simulated nodes."""

    nodes = ("node-0", "node-1", "node-2")

    def start(self, site: Site, *words: str | Path) -> subprocess.Popen[str]:
        return site.start(*dragon("--nodes", "3", *words))

    def leftovers(self) -> list[str]:
        return []  # all that they leave is on this machine


@pytest.fixture(scope="session")
def simulated() -> Simulated:
    """Provide three simulated nodes."""
    return Simulated()
