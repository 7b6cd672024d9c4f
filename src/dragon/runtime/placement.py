"""From a policy to a node, its CPUs and its devices."""

from __future__ import annotations

import functools
import itertools
import os
import sys
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from dragon.infrastructure import parameters
from dragon.infrastructure.node_desc import NodeDescriptor, describe_this_node
from dragon.infrastructure.policy import Policy, PolicyError

__all__ = ["Placed", "one_warning", "place", "run_nodes", "same_host", "search_executable", "warn_user"]


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
    return name in (node.host_name, "localhost") or name.split(".", maxsplit=1)[0] == node.host_name.split(".")[0]


def place(policy: Policy | None) -> Placed:
    """Decide on one process. Raises PolicyError where no node of the run can meet the policy."""
    chosen = Policy.merge(Policy.merge(Policy.global_policy(), Policy.thread_policy()), policy)
    node = _choose_node(chosen)
    cpus = [int(cpu) for cpu in chosen.cpu_affinity if cpu in node.cpus]
    gpus = [gpu for gpu in chosen.gpu_affinity if gpu in node.gpus]
    _note_missing(
        node,
        CPUs=[cpu for cpu in chosen.cpu_affinity if cpu not in node.cpus],
        GPUs=[gpu for gpu in chosen.gpu_affinity if gpu not in node.gpus],
    )
    environment = {}
    variable = chosen.gpu_env_str or node.gpu_env_str
    if gpus and variable:
        environment[variable] = ",".join(str(gpu) for gpu in gpus)
    return Placed(node, cpus, environment)


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


# What was asked of each node and is not there: (node, kind of device) to numbers. Told once.
_missing: dict[tuple[str, str], set[float]] = {}
_gathering = False


def _note_missing(node: NodeDescriptor, **devices: list[float]) -> None:
    new = {kind: set(numbers) - _missing.get((node.host_name, kind), set()) for kind, numbers in devices.items()}
    if parameters.strict() and any(devices.values()):
        raise PolicyError(_lack(node, {kind: set(numbers) for kind, numbers in devices.items()}))
    for kind, numbers in new.items():
        _missing.setdefault((node.host_name, kind), set()).update(numbers)
    if any(new.values()) and not _gathering:
        warn_user(_lack(node, new) + "; affinities are cut to what exists")


def _lack(node: NodeDescriptor, missing: dict[str, set[float]]) -> str:
    there = {"CPUs": node.cpus, "GPUs": node.gpus}
    parts = [
        f"no {kind} {_listed(numbers)} (it has {_listed(there[kind]) or 'none'})"
        for kind, numbers in missing.items()
        if numbers
    ]
    return f"{node.host_name} has " + " and ".join(parts)


@contextmanager
def one_warning() -> Iterator[None]:
    """Warn once, at the end of the block, of all devices that the placements in it lack."""
    global _gathering
    before = {key: set(numbers) for key, numbers in _missing.items()}
    _gathering = True
    try:
        yield
    finally:
        _gathering = False
    for node in run_nodes():
        new = {
            kind: _missing.get((node.host_name, kind), set()) - before.get((node.host_name, kind), set())
            for kind in ("CPUs", "GPUs")
        }
        if any(new.values()):
            warn_user(_lack(node, new) + "; affinities are cut to what exists")


def warn_user(text: str) -> None:
    """A RuntimeWarning at the line of the user's program that led here."""
    level = 2
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("dragon.", "contextlib")):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, RuntimeWarning, stacklevel=level)


def _listed(numbers: Collection[float]) -> str:
    """1, 2 and 5, with runs as 1-3."""
    result: list[str] = []
    for _, run in itertools.groupby(enumerate(sorted(numbers)), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in run]
        result.append(f"{members[0]}-{members[-1]}" if len(members) > 2 else ", ".join(str(m) for m in members))
    return ", ".join(result)


def search_executable(target: str, folder: str) -> str:
    """The file that a program's name means: as given, in PATH, or in `folder`. Raises AttributeError."""
    for candidate in [target, *(os.path.join(p, target) for p in os.get_exec_path()), os.path.join(folder, target)]:
        if os.path.isfile(candidate) and (os.sep in candidate or candidate is not target):
            return os.path.abspath(candidate)
    if os.path.isfile(target):
        return os.path.abspath(target)
    raise AttributeError(f"Cannot find executable {target} directly, in PATH or in working directory {folder}")
