"""Real peers of the launchers: Slurm, hosts with sshd, Ray, the pods of a Job, all on this machine.

Each module starts its peer once per session, in a temporary folder, and ends all of it. Its fixture gives the peer to
one test after the other, each of which must leave nothing there. If a peer is not available, the fixture skips the test
and says what is missing.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest

from conftest import Site

__all__ = ["Peer", "await_that", "dragon", "front_end", "hear", "hear_error", "needs_agent", "nothing_left"]

needs_agent = pytest.mark.skipif(
    importlib.util.find_spec("dragon.agent.node") is None,
    reason="there is no dragon.agent.node, the agent of a node among several",
)


class Peer(Protocol):
    """A cluster of several nodes. `nodes` are their names, as programs see them."""

    nodes: tuple[str, ...]

    def start(self, site: Site, *words: str | Path) -> subprocess.Popen[str]:
        """Run `dragon` with these arguments over all nodes; its streams are those of the returned process."""

    def leftovers(self) -> list[str]:
        """Return what runs have left on the nodes."""


@contextmanager
def nothing_left(peer: Any) -> Iterator[Any]:
    """Provide a peer for one test, and wait afterwards until nothing of the test's runs is left there."""
    yield peer
    await_that(lambda: not peer.leftovers(), "the end of all that runs have left")


def dragon(*words: str | Path) -> list[str]:
    """Return the command line of `dragon`."""
    return [sys.executable, "-m", "dragon", *map(str, words)]


def front_end(process: subprocess.Popen[str]) -> psutil.Process:
    """Return the process of the `dragon` command itself, a descendant of the commands that started it."""
    family = [psutil.Process(process.pid)]
    family += family[0].children(recursive=True)
    return next(one for one in family if one.exe() == str(Path(sys.executable).resolve()))


def hear(site: Site, process: subprocess.Popen[str], count: int = 1, timeout: float = 60) -> list[str]:
    """Read the next lines of a process's output. If they do not arrive in time, kill everything and fail the test."""
    assert process.stdout is not None
    begin = time.monotonic()
    alarm = threading.Timer(timeout, site.kill)
    alarm.start()
    try:
        lines = [process.stdout.readline() for _ in range(count)]
    finally:
        alarm.cancel()
    if not lines[-1]:
        site.kill()
        _, err = process.communicate(timeout=20)
        pytest.fail(f"of {count} lines, {lines} came in {time.monotonic() - begin:.0f} s\n{err}")
    return [line.rstrip("\n") for line in lines]


def hear_error(site: Site, process: subprocess.Popen[str], text: str, timeout: float = 60) -> float:
    """Wait for a line with `text` on a process's standard error, or fail the test; return the seconds that this
    took.
    """
    assert process.stderr is not None
    begin = time.monotonic()
    alarm = threading.Timer(timeout, site.kill)
    alarm.start()
    try:
        lines = []
        for line in process.stderr:
            if text in line:
                return time.monotonic() - begin
            lines.append(line)
        pytest.fail(f"{text!r} was not said, but\n{''.join(lines)}")
    finally:
        alarm.cancel()


def await_that(condition: Callable[[], object], what: str, timeout: float = 30) -> None:
    """Wait until a condition holds, and fail the test if this takes too long."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}"
        time.sleep(0.02)
