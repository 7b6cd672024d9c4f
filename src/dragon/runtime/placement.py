"""Chooses the node, CPUs and devices of a process from policies.

Four levels may set an attribute, and the first that does so decides: the policy of the process or its template, that of
its group, that of the thread (`with Policy(...)`), and the global default.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from dragon.infrastructure import variables
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.node_desc import NodeDescriptor
from dragon.infrastructure.policy import Policy, PolicyError, choose
from dragon.infrastructure.variables import POLICY
from dragon.runtime.agent_client import ask
from dragon.runtime.lacking import note_missing
from dragon.runtime.nodes import find_node, own_node, run_nodes, same_host
from dragon.runtime.protocol.run import LostNode, LostNodes
from dragon.runtime.run import current_run


class Placed(NamedTuple):
    """The place of a process."""

    node: NodeDescriptor  # the node
    cpus: list[int]  # the CPUs, as the node numbers them; empty for all
    environment: dict[str, str]  # the variables that the process gets for its place
    named: bool = False  # whether the policy names the node
    source: str = "global"  # the level that chose the node: "template", "group", "thread" or "global"
    rank: int | None = None  # the rank of a member of a group or pool; else None
    group: str = ""  # the name of the group or pool; else ""

    @property
    def mask(self) -> list[int]:
        """The existing CPUs to which the process is bound; empty for all."""
        return self.node.existing_cpus(self.cpus)

    @property
    def is_local(self) -> bool:
        """Whether the node is the caller's."""
        return self.node.index == own_node().index


class Member(NamedTuple):
    """One of several processes that are placed together."""

    group: str  # the name of the group or pool
    rank: int  # its rank
    position: int  # its position among the members whose policy names no node
    thread_policy: Policy  # the policy of the thread that made the group


class _Context(threading.local):
    member: Member | None = None


_context = _Context()
_NOTHING = Policy()
_GLOBAL = Policy.global_policy()
# Counts the processes that this process places whose policy names no node and that belong to no group.
_singles = itertools.count()


@contextmanager
def as_member(member: Member) -> Iterator[None]:
    """Place the process that this thread starts in the block as that member."""
    _context.member = member
    try:
        yield
    finally:
        _context.member = None


def members(group: str, policies: Iterable[Policy | None]) -> list[Member]:
    """Return the members of a group or pool that this thread makes, in order of rank, one for each policy."""
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
    """Return the place of a process."""
    member = member or _context.member
    thread_policy = member.thread_policy if member else Policy.thread_policy() if Policy.is_in_block() else _NOTHING
    inherited = thread_policy if thread_policy != _NOTHING else None
    levels = {"thread": inherited, "group": group_policy, "template": policy}
    chosen = _GLOBAL
    for level in levels.values():
        if level is not None:
            chosen = Policy.merge(chosen, level)
    node = _choose_node(chosen, member)
    cpus, gpus = [], []
    if chosen.cpu_affinity or chosen.gpu_affinity:
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


def named_node(policy: Policy | None) -> NodeDescriptor | None:
    """Return the node that a policy names, or else that of the thread; None if no node is named."""
    chosen = Policy.merge(Policy.thread_policy(), policy)
    return _choose_node(chosen, None) if _names_a_node(chosen) else None


def _source(levels: dict[str, Policy | None], named: bool) -> str:
    """Return the highest level that sets the placement, or the distribution if no node is named."""
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
            _check_lost(lambda lost: same_host(policy.host_name, lost.host_name))
            raise PolicyError(f"no node of this run is called {policy.host_name!r}; there is {_names(nodes)}")
        return found
    if policy.placement == Policy.Placement.HOST_ID:
        for node in nodes:
            if node.h_uid == policy.host_id:
                return node
        _check_lost(lambda lost: lost.host_id == policy.host_id)
        raise PolicyError(f"no node of this run has the host id {policy.host_id}; there is {_names(nodes)}")
    if len(nodes) == 1:
        return nodes[0]
    if member is not None:
        return choose(nodes, member.position, policy.distribution)
    own = own_node().index
    start = next((place for place, node in enumerate(nodes) if node.index == own), 0)
    return choose(nodes, next(_singles), policy.distribution, start)


def _check_lost(is_named: Callable[[LostNode], bool]) -> None:
    """Raise NodeLostError if the named node was part of the run and is lost."""
    if current_run() is None:
        return
    for lost in filter(is_named, ask(LostNodes())):
        raise NodeLostError(f"{lost.host_name} is lost: {lost.reason}")


def _names(nodes: list[NodeDescriptor]) -> str:
    return ", ".join(node.host_name for node in nodes)


def search_executable(target: str, folder: str) -> str:
    """Return the path of a program: as given, in PATH, or in `folder`. Raises AttributeError if it is not found."""
    for candidate in [target, *(os.path.join(p, target) for p in os.get_exec_path()), os.path.join(folder, target)]:
        if os.path.isfile(candidate) and (os.sep in candidate or candidate is not target):
            return os.path.abspath(candidate)
    if os.path.isfile(target):
        return os.path.abspath(target)
    raise AttributeError(f"Cannot find executable {target} directly, in PATH or in working directory {folder}")


class PlanRecord(msgspec.Struct, kw_only=True):
    """One placement. `cpus` are numbered as by the node, empty for all; `gpus` are the variables that select GPUs.
    `rank` and `group` are those of a member of a group or pool, `puid` is 0 if none is assigned yet; `policy` is the
    level that chose the node: "template", "group", "thread" or "global"."""

    name: str
    target: str
    host_name: str
    node: int
    cpus: list[int] = []
    gpus: dict[str, str] = {}
    policy: str = "global"
    puid: int = 0
    rank: int | None = None
    group: str = ""


def note(placed: Placed, name: str, target: str, puid: int = 0) -> None:
    """Add a placement to the record, if DRAGON_PLAN is set. Raises OSError if it cannot be written."""
    path = os.environ.get(variables.PLAN)
    if not path:
        return
    record = PlanRecord(
        name=name,
        target=target,
        host_name=placed.node.host_name,
        node=placed.node.index,
        cpus=placed.cpus,
        gpus={key: value for key, value in placed.environment.items() if key != variables.POLICY},
        policy=placed.source,
        puid=puid,
        rank=placed.rank,
        group=placed.group,
    )
    # One write of a whole line at the end of the file, so that lines of several processes are not mixed.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, msgspec.json.encode(record) + b"\n")
    finally:
        os.close(file)


def note_head(command: Sequence[str], puid: int) -> None:
    """Add the head process to the record, on its own node."""
    if os.environ.get(variables.PLAN):
        program = next((word for word in command[1:] if word.endswith(".py")), command[0])
        note(Placed(own_node(), [], {}), "head", os.path.basename(program), puid)


def name_of(target: Callable[..., Any] | str | None) -> str:
    """Return the name of a target in a plan."""
    if target is None or isinstance(target, str):
        return os.path.basename(target or "")
    while isinstance(target, functools.partial):
        target = target.func
    return str(getattr(target, "__qualname__", type(target).__name__))


def read_plan(path: str | Path) -> list[PlanRecord]:
    """Return the placements of a record, in order; an empty list if there is no record."""
    try:
        lines = Path(path).read_bytes().splitlines()
    except FileNotFoundError:
        return []
    return [msgspec.json.decode(line, type=PlanRecord) for line in lines]
