"""A Ray cluster of three nodes on this machine, made with Ray's own test utilities."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from conftest import Site
from peers import dragon, nothing_left

__all__ = ["RayCluster", "ray_cluster", "running_ray"]

# A separate process, which ends its cluster when nothing reads its output any more.
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


class RayCluster:
    """A cluster at `address`. All its nodes are this machine and have its name."""

    nodes = (socket.gethostname(),) * 3

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self._process = process
        self.address = process.stdout.readline().strip()
        assert self.address, "Ray did not come up"

    def start(self, site: Site, *words: str | Path) -> subprocess.Popen[str]:
        return site.start(*dragon("--wlm", "ray", "--address", self.address, *words))

    def leftovers(self) -> list[str]:
        commands = []
        for process in psutil.Process(self._process.pid).children(recursive=True):
            try:
                commands.append(" ".join(process.cmdline()))
            except psutil.NoSuchProcess:
                continue
        return [command for command in commands if "dragon node" in command]


@pytest.fixture(scope="session")
def running_ray() -> Iterator[RayCluster]:
    """Start a cluster of three nodes for the session."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed (extra [ray])")
    command = [sys.executable, "-c", CLUSTER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield RayCluster(process)
        finally:
            process.communicate("", timeout=60)


@pytest.fixture
def ray_cluster(running_ray: RayCluster) -> Iterator[RayCluster]:
    """Provide the cluster to a test, with nothing on it."""
    with nothing_left(running_ray):
        yield running_ray
