"""What launchers speak to, for real: Slurm, hosts behind sshd, Ray, the pods of a Job, all on this machine.

Each module has one fixture, for the whole session, which starts its peer in a temporary folder and ends all of it.
Where a peer cannot be had, its fixture skips the test and says what is missing.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import psutil
import pytest

from conftest import Site

__all__ = ["Peer", "await_that", "dragon", "front_end", "hear", "needs_agent"]

needs_agent = pytest.mark.skipif(
    importlib.util.find_spec("dragon.agent.node") is None,
    reason="there is no dragon.agent.node, the agent of a node among several",
)


class Peer(Protocol):
    """A place with several nodes. `nodes` are their names, as programs see them."""

    nodes: tuple[str, ...]

    def start(self, site: Site, *words: str | Path) -> subprocess.Popen[str]:
        """Run `dragon` with these words over all nodes; its streams are those of the process."""

    def leftovers(self) -> list[str]:
        """What runs have left there."""


def dragon(*words: str | Path) -> list[str]:
    """The command line of `dragon`."""
    return [sys.executable, "-m", "dragon", *map(str, words)]


def front_end(process: subprocess.Popen[str]) -> psutil.Process:
    """The `dragon` command itself, below the commands that started it."""
    family = [psutil.Process(process.pid)]
    family += family[0].children(recursive=True)
    return next(one for one in family if one.exe() == str(Path(sys.executable).resolve()))


def hear(site: Site, process: subprocess.Popen[str], count: int = 1, timeout: float = 60) -> list[str]:
    """The next lines that it writes. Where they do not come, everything is killed, and what has come is returned."""
    assert process.stdout is not None
    alarm = threading.Timer(timeout, site.kill)
    alarm.start()
    try:
        return [process.stdout.readline().rstrip("\n") for _ in range(count)]
    finally:
        alarm.cancel()


def await_that(condition: Callable[[], object], what: str, timeout: float = 30) -> None:
    """Wait until a condition holds, and fail where that takes too long."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(0.02)
