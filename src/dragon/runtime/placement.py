"""From a policy to a node, its CPUs and its devices.

Four levels can ask for something; what a higher one leaves open a lower one says: the process's own policy or its
template's, its group's, the thread's (`with Policy(...)`), and what holds everywhere.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from dragon.infrastructure.node_desc import NodeDescriptor
from dragon.infrastructure.policy import Policy, PolicyError
from dragon.infrastructure.variables import POLICY
from dragon.runtime.distribution import choose
from dragon.runtime.lacking import note_missing
from dragon.runtime.nodes import find_node, own_node, run_nodes

__all__ = ["Member", "Placed", "as_member", "members", "place", "search_executable"]


class Placed(NamedTuple):
    """Where a process goes: CPUs as the node numbers them (empty: all), and what its environment gets.

    `named` says whether the policy left no choice of the node, `source` which level decided it; `rank` and `group` are
    set for members of a group or pool.
    """

    node: NodeDescriptor
    cpus: list[int]
    environment: dict[str, str]
    named: bool = False
    source: str = "global"
    rank: int | None = None
    group: str = ""

    @property
    def mask(self) -> list[int]:
        """The CPUs that exist, to bind the process to; empty: all."""
        return self.node.existing_cpus(self.cpus)

    @property
    def is_local(self) -> bool:
        """Whether this is the caller's own node."""
        return self.node.index == own_node().index


class Member(NamedTuple):
    """One process of several: its rank, its place among those that have no node named, the policy of the thread that
    made the group."""

    group: str
    rank: int
    position: int
    thread_policy: Policy


class _Context(threading.local):
    member: Member | None = None


_context = _Context()
_NOTHING = Policy()
_GLOBAL = Policy.global_policy()
# Processes of this process that have no node named and belong to no group.
_singles = itertools.count()


@contextmanager
def as_member(member: Member) -> Iterator[None]:
    """A process that this thread places in the block is that member."""
    _context.member = member
    try:
        yield
    finally:
        _context.member = None


def members(group: str, policies: Iterable[Policy | None]) -> list[Member]:
    """The members of a group or pool that this thread makes, in order of rank; a policy for each."""
    thread_policy = Policy.thread_policy()
    result, position = [], 0
    for rank, policy in enumerate(policies):
        result.append(Member(group, rank, position, thread_policy))
        decides = policy if policy is not None and policy.placement != Policy.Placement.DEFAULT else thread_policy
        position += not _names_a_node(decides)
    return result


def _names_a_node(policy: Policy) -> bool:
    return policy.placement in (Policy.Placement.HOST_NAME, Policy.Placement.HOST_ID, Policy.Placement.LOCAL)


def place(policy: Policy | None, group_policy: Policy | None = None, *, member: Member | None = None) -> Placed:
    """Decide on one process. Raises PolicyError where no node of the run can meet the policy.

    A process of its own goes to the caller's node and its next ones to the nodes after that, a member to the node of
    its place in the group, counted from the run's first node.
    """
    member = member or _context.member
    thread_policy = Policy.thread_policy() if member is None else member.thread_policy
    inherited = thread_policy if thread_policy != _NOTHING else None
    levels = {"thread": inherited, "group": group_policy, "template": policy}
    chosen = _GLOBAL
    for level in levels.values():
        if level is not None:
            chosen = Policy.merge(chosen, level)
    node = _choose_node(chosen, member)
    cpus = [int(cpu) for cpu in chosen.cpu_affinity if cpu in node.cpus]
    gpus = [gpu for gpu in chosen.gpu_affinity if node.has_gpu(gpu)]
    note_missing(
        node,
        CPUs=[cpu for cpu in chosen.cpu_affinity if cpu not in node.cpus],
        GPUs=[gpu for gpu in chosen.gpu_affinity if not node.has_gpu(gpu)],
    )
    environment = {}
    variable = chosen.gpu_env_str or node.gpu_env_str
    if gpus and variable:
        environment[variable] = ",".join(node.gpu_name(gpu) for gpu in gpus)
    if inherited is not None:
        environment[POLICY] = inherited.to_text()
    named = _names_a_node(chosen)
    placed = Placed(node, cpus, environment, named, _source(levels, named))
    return placed if member is None else placed._replace(rank=member.rank, group=member.group)


def _source(levels: dict[str, Policy | None], named: bool) -> str:
    """The highest level that says where to; its distribution counts where no node is named."""
    for name, policy in reversed(levels.items()):
        if policy is None:
            continue
        if policy.placement != Policy.Placement.DEFAULT:
            return name
        if not named and policy.distribution != Policy.Distribution.DEFAULT:
            return name
    return "global"


def _choose_node(policy: Policy, member: Member | None) -> NodeDescriptor:
    nodes = run_nodes()
    if policy.placement == Policy.Placement.LOCAL:
        return own_node()
    if policy.placement == Policy.Placement.HOST_NAME:
        found = find_node(policy.host_name)
        if found is None:
            raise PolicyError(f"no node of this run is called {policy.host_name!r}; there is {_names(nodes)}")
        return found
    if policy.placement == Policy.Placement.HOST_ID:
        for node in nodes:
            if node.h_uid == policy.host_id:
                return node
        raise PolicyError(f"no node of this run has the host id {policy.host_id}; there is {_names(nodes)}")
    if len(nodes) == 1:
        return nodes[0]
    if member is not None:
        return choose(nodes, member.position, policy.distribution)
    own = own_node().index
    start = next((place for place, node in enumerate(nodes) if node.index == own), 0)
    return choose(nodes, next(_singles), policy.distribution, start)


def _names(nodes: list[NodeDescriptor]) -> str:
    return ", ".join(node.host_name for node in nodes)


def search_executable(target: str, folder: str) -> str:
    """The file that a program's name means: as given, in PATH, or in `folder`. Raises AttributeError."""
    for candidate in [target, *(os.path.join(p, target) for p in os.get_exec_path()), os.path.join(folder, target)]:
        if os.path.isfile(candidate) and (os.sep in candidate or candidate is not target):
            return os.path.abspath(candidate)
    if os.path.isfile(target):
        return os.path.abspath(target)
    raise AttributeError(f"Cannot find executable {target} directly, in PATH or in working directory {folder}")
