"""A network that goes silent, between two network namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Site

ENDS = """
import asyncio, sys, time
import uvloop
from dragon.agent.control import Control

async def main():
    over = asyncio.Event()
    control = Control("the other node")
    control.on_message = lambda kind, values: None
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
        control.send("something", data=b"x" * 1000)
        await asyncio.sleep(0.1)
    await over.wait()

uvloop.run(main())
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@pytest.fixture
def link() -> Iterator[tuple[str, str]]:
    """Two namespaces and a cable between them."""
    names = (f"dragon-{os.getpid()}-a", f"dragon-{os.getpid()}-b")
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    if subprocess.run(["ip", "netns", "add", names[0]], capture_output=True, check=False).returncode:
        pytest.skip("network namespaces are not permitted here")
    ip("netns", "add", names[1])
    ip("link", "add", "cable", "netns", names[0], "type", "veth", "peer", "cable", "netns", names[1])
    for number, name in enumerate(names, 1):
        ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "cable")
        ip("-n", name, "link", "set", "cable", "up")
    yield names
    for name in names:
        ip("netns", "del", name)


@pytest.mark.parametrize("manner", ["silent", "talking"])
def test_a_cut_cable_is_noticed_at_both_ends(site: Site, link: tuple[str, str], manner: str) -> None:
    program: Path = site.write(ENDS)
    ends = []
    for name, role in zip(link, ("listen", "call"), strict=True):
        ends.append(site.start("ip", "netns", "exec", name, sys.executable, program, role, manner))
        assert ends[-1].stdout.readline()  # type: ignore[union-attr]
    # Frames go to a card that does not exist, and no interface goes down: a broken switch, as a host sees it.
    for number, name in enumerate(reversed(link), 1):
        address = f"10.77.0.{number}"
        ip("-n", name, "neigh", "replace", address, "lladdr", "02:00:00:00:00:99", "dev", "cable", "nud", "permanent")
    cut = time.monotonic()
    for end in ends:
        out, err = end.communicate(timeout=30)
        assert "the connection to the other node failed: " in out, err
        assert "timed out" in out
    # Five seconds are promised; a busy machine may start the last of them late.
    assert time.monotonic() - cut < 10
