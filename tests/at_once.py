"""Run several tests at a time: each worker has its own network and its own runtime folder.

Runs of one worker are then not seen by tests of another that list or end all runs of the user, and the ports of one are
free for the others.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
from pathlib import Path

import pytest

__all__ = [
    "in_the_network_of_the_machine",
    "pytest_collection_finish",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_xdist_auto_num_workers",
]

_NEW_NETWORK = 0x40000000
_TRY = "unshare --net ip link add eth0 type veth peer name far"
_MOST_WORKERS = 4
# Peers that take long to start.
_STARTED_ONCE = {
    "slurm": "running_slurm",
    "ssh_hosts": "running_hosts",
    "pods": "running_pods",
    "ray_cluster": "running_ray",
}


def pytest_xdist_auto_num_workers() -> int:
    """Use two workers more than there are processors, as tests wait half of their time; none if workers cannot be
    isolated.
    """
    tried = subprocess.run(["sh", "-c", _TRY], capture_output=True, check=False)
    return min(len(os.sched_getaffinity(0)) + 2, _MOST_WORKERS) if tried.returncode == 0 else 0


def pytest_configure(config: pytest.Config) -> None:
    """Isolate a worker from the others."""
    config.addinivalue_line("markers", "long: takes half a minute or more, and begins before the others")
    if not hasattr(config, "workerinput"):
        return
    take_own_network()
    folder = Path(config.option.basetemp).with_name(config.workerinput["workerid"])
    folder.mkdir(mode=0o700)
    os.environ["XDG_RUNTIME_DIR"] = str(folder)


def in_the_network_of_the_machine() -> list[str]:
    """Return the words before a command that needs a route out, such as to a package index."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return []
    return ["nsenter", f"--net=/proc/{os.getppid()}/ns/net"]  # that of the process that started the workers


def take_own_network() -> None:
    """Move this process to its own network, which has the addresses of the machine and no route out. Raises OSError."""
    told = subprocess.run(["ip", "-json", "-4", "addr", "show", "scope", "global"], capture_output=True, check=True)
    addresses = [f"{a['local']}/{a['prefixlen']}" for device in json.loads(told.stdout) for a in device["addr_info"]]
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "no network of its own")
    for command in [
        "link set lo up",
        "link add eth0 type veth peer name far",
        *[f"addr add {address} dev eth0" for address in addresses],
        "link set eth0 up",
        "link set far up",
        "route add default dev eth0",  # programs look up which of their addresses has a route to the outside
    ]:
        subprocess.run(["ip", *command.split()], check=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Group tests that share a peer on one worker. These groups begin first, as they take long, then other long
    tests.
    """
    if not hasattr(config, "workerinput"):
        return
    for item in items:
        callspec = getattr(item, "callspec", None)
        named = {value for value in callspec.params.values() if isinstance(value, str)} if callspec else set()
        for peer, running in _STARTED_ONCE.items():
            if running in getattr(item, "fixturenames", ()) or peer in named:
                item.add_marker(pytest.mark.xdist_group(peer))
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in ("xdist_group", "long")])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Raise pytest.UsageError if groups are requested but have no effect."""
    grouped = [item for item in session.items if item.get_closest_marker("xdist_group")]
    if hasattr(session.config, "workerinput") and any("@" not in item.nodeid for item in grouped):
        raise pytest.UsageError("these versions of pytest and pytest-xdist do not keep a group on one worker")
