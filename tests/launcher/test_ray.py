"""The Ray launcher on a Ray cluster of three nodes, all on this machine."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Site
from dragon.launcher.base import LaunchError
from dragon.launcher.choice import Wanted, choose

OVER = Path(__file__).with_name("over.py")
PRESENT = importlib.util.find_spec("ray") is not None

CLUSTER = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
for _ in range(2):
    cluster.add_node(num_cpus=2)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.mark.skipif(PRESENT, reason="Ray is installed")
def test_without_ray() -> None:
    with pytest.raises(LaunchError, match=r"Ray is not installed here: pip install 'dragon-runtime\[ray\]'"):
        choose(Wanted(wlm="ray"), {})


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a cluster of three nodes."""
    if not PRESENT:
        pytest.skip("Ray is not installed (extra [ray])")
    cluster = subprocess.Popen(
        [sys.executable, "-c", CLUSTER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert cluster.stdout is not None
    yield cluster.stdout.readline().strip()
    cluster.communicate("", timeout=60)


def over(address: str, *command: str, nodes: int = 0) -> list[str | Path]:
    wanted = f'{{"wlm": "ray", "address": "{address}", "nodes": {nodes}}}'
    return [sys.executable, OVER, wanted, "{}", *command]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("nodes", [0, 2])
def test_an_agent_on_each_node(site: Site, address: str, nodes: int) -> None:
    done = site.run(*over(address, "sh", "-c", "echo $INDEX; echo $NODES | wc -w; exit 6", nodes=nodes), timeout=120)
    assert done.stdout == f"0\n{nodes or 3}\ncode 6\n", done.stderr


@pytest.mark.timeout(240)
def test_more_nodes_than_there_are(site: Site, address: str) -> None:
    done = site.run(*over(address, "true", nodes=4), timeout=120)
    assert "launch failed: 4 nodes were asked for; the Ray cluster has 3" in done.stderr


@pytest.mark.timeout(240)
def test_an_agent_that_fails_is_told(site: Site, address: str) -> None:
    done = site.run(*over(address, "true"), timeout=120, env={"STAND_IN": "/nonexistent.py"})
    assert "launch failed: the agent of Ray's actor" in done.stderr
    assert "can't open file" in done.stderr
