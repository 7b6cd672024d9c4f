"""A network between two hosts that stops delivering packets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Site
from peers.lan import Lan, permitted

ENDS = """
import asyncio, sys, time
import uvloop
from dragon.control import Control
from dragon.runtime.protocol.agents import Wrote
from dragon.control import Control

async def main():
    over = asyncio.Event()
    control = Control("the other node")
    control.serve(lambda body: None)
    def lost(reason):
        print(reason, flush=True)
        over.set()
    control.on_lost = lost
    loop = asyncio.get_running_loop()
    if sys.argv[1] == "listen":
        server = await loop.create_server(lambda: control, "10.77.0.1", 7000)
        print("listening", flush=True)
    else:
        await loop.create_connection(lambda: control, "10.77.0.1", 7000)
        print("connected", flush=True)
    while sys.argv[2] == "talking" and not over.is_set():
        control.send(Wrote(1, b"x" * 1000))
        await asyncio.sleep(0.1)
    await over.wait()

uvloop.run(main())
"""


@pytest.fixture
def lan(tmp_path: Path) -> Iterator[Lan]:
    """Two hosts on one network."""
    permitted()
    with Lan(tmp_path, ["a", "b"]) as hosts:
        yield hosts


@pytest.mark.parametrize("manner", ["silent", "talking"])
def test_a_silent_network_is_noticed_at_both_ends(site: Site, lan: Lan, manner: str) -> None:
    program: Path = site.write(ENDS)
    ends = []
    for name, role in (("a", "listen"), ("b", "call")):
        ends.append(site.start(*lan.at(name, sys.executable, program, role, manner)))
        assert ends[-1].stdout.readline()  # type: ignore[union-attr]
    # Frames go to a card that does not exist, and no interface goes down: a broken switch, as a host sees it.
    for name, other in (("a", "b"), ("b", "a")):
        nowhere = ["lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "permanent"]
        subprocess.run(lan.at(name, "ip", "neigh", "replace", lan.addresses[other], *nowhere), check=True)
    for end in ends:
        out, err = end.communicate(timeout=60)  # of which the promise is five; without it, the kernel takes 15 minutes
        assert "the connection to the other node failed: " in out, err
        assert "timed out" in out
