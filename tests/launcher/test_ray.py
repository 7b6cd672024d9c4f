"""The Ray launcher with a Ray cluster of three nodes on this machine."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from conftest import Site
from dragon.launcher.base import LaunchError
from dragon.launcher.choice import Wanted, choose
from peers.ray import RayCluster

OVER = Path(__file__).with_name("over.py")


def test_the_error_about_missing_ray_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(LaunchError, match=r"Ray is not installed here: pip install 'dragon-runtime\[ray\]'"):
        choose(Wanted(wlm="ray"), {})


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "127.0.0.1:99999"])
def test_an_address_without_a_cluster_is_reported_at_once(site: Site, address: str) -> None:
    pytest.importorskip("ray")
    begun = time.monotonic()
    done = site.dragon("--wlm", "ray", "--address", address, "true")
    assert done.returncode != 0
    assert f"no Ray cluster at '{address}': " in done.stderr
    assert time.monotonic() - begun < 30


def over(cluster: RayCluster, *command: str, nodes: int = 0) -> list[str | Path]:
    wanted = f'{{"wlm": "ray", "address": "{cluster.address}", "nodes": {nodes}}}'
    return [sys.executable, OVER, wanted, "{}", *command]


@pytest.mark.parametrize("nodes", [0, 2])
def test_an_agent_starts_on_each_node(site: Site, ray_cluster: RayCluster, nodes: int) -> None:
    done = site.run(
        *over(ray_cluster, "sh", "-c", "echo $INDEX; echo $NODES | wc -w; exit 6", nodes=nodes), timeout=120
    )
    assert done.stdout == f"0\n{nodes or 3}\ncode 6\n", done.stderr


def test_more_nodes_than_the_cluster_has_are_refused(site: Site, ray_cluster: RayCluster) -> None:
    done = site.run(*over(ray_cluster, "true", nodes=4), timeout=120)
    assert "launch failed: 4 nodes were requested; the Ray cluster has 3" in done.stderr


def test_an_agent_that_fails_is_reported(site: Site, ray_cluster: RayCluster) -> None:
    done = site.run(*over(ray_cluster, "true"), timeout=120, env={"STAND_IN": "/nonexistent.py"})
    assert "launch failed: the agent of Ray's actor" in done.stderr
    assert "can't open file" in done.stderr
