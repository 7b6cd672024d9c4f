"""From a policy to a node, its CPUs and its devices."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Sequence
from typing import NamedTuple

from dragon.infrastructure import parameters
from dragon.infrastructure.node_desc import NodeDescriptor, describe_this_node
from dragon.infrastructure.policy import Policy, PolicyError

__all__ = ["Placed", "place", "run_nodes"]


class Placed(NamedTuple):
    """Where a process goes: CPUs (empty: all) and what its environment gets."""

    node: NodeDescriptor
    cpus: list[int]
    environment: dict[str, str]


@functools.cache
def run_nodes() -> list[NodeDescriptor]:
    """The nodes of the run, the primary one first."""
    return [describe_this_node()]


def same_host(name: str, node: NodeDescriptor) -> bool:
    """Whether a user's name for a host means that node: short and full names are the same."""
    return name in (node.host_name, "localhost") or name.split(".")[0] == node.host_name.split(".")[0]


def place(policy: Policy | None) -> Placed:
    """Decide on one process. Raises PolicyError where no node of the run can meet the policy."""
    chosen = Policy.merge(Policy.merge(Policy.global_policy(), Policy.thread_policy()), policy)
    node = _choose_node(chosen)
    cpus = _available(node, "CPUs", chosen.cpu_affinity, node.cpus)
    gpus = _available(node, "GPUs", chosen.gpu_affinity, node.gpus)
    environment = {}
    variable = chosen.gpu_env_str or node.gpu_env_str
    if gpus and variable:
        environment[variable] = ",".join(str(g) for g in gpus)
    return Placed(node, [int(c) for c in cpus], environment)


def _choose_node(policy: Policy) -> NodeDescriptor:
    nodes = run_nodes()
    names = ", ".join(node.host_name for node in nodes)
    if policy.placement == Policy.Placement.HOST_NAME:
        for node in nodes:
            if same_host(policy.host_name, node):
                return node
        raise PolicyError(f"no node of this run is called {policy.host_name!r}; there is {names}")
    if policy.placement == Policy.Placement.HOST_ID:
        for node in nodes:
            if node.h_uid == policy.host_id:
                return node
        raise PolicyError(f"no node of this run has the host id {policy.host_id}; there is {names}")
    return nodes[0]


def _available(node: NodeDescriptor, what: str, wanted: Sequence[float], there: Sequence[int]) -> list[float]:
    """The wanted devices that the node has. What it lacks is named once, or is an error where that was asked for."""
    missing = [device for device in wanted if device not in there]
    if missing:
        _report_missing(node.host_name, what, tuple(missing), tuple(there))
    return [device for device in wanted if device in there]


def _report_missing(host: str, what: str, missing: tuple[float, ...], there: tuple[int, ...]) -> None:
    text = f"{host} has no {what} {_listed(missing)} (it has {_listed(there) or 'none'}): the affinity is cut to what exists"
    if parameters.strict():
        raise PolicyError(text)
    if (host, what) not in _reported:
        _reported.add((host, what))
        warnings.warn(text, RuntimeWarning, stacklevel=2)


_reported: set[tuple[str, str]] = set()


def _listed(numbers: Sequence[float]) -> str:
    return ", ".join(str(n) for n in numbers)


def search_executable(target: str, folder: str) -> str:
    """The file that a program's name means: as given, in PATH, or in `folder`. Raises AttributeError."""
    for candidate in [target, *(os.path.join(p, target) for p in os.get_exec_path()), os.path.join(folder, target)]:
        if os.path.isfile(candidate) and (os.sep in candidate or candidate is not target):
            return os.path.abspath(candidate)
    if os.path.isfile(target):
        return os.path.abspath(target)
    raise AttributeError(f"Cannot find executable {target} directly, in PATH or in working directory {folder}")
