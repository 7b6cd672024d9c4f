"""Chooses the node, CPUs and devices of a process from policies.

Four levels may set an attribute, and the first that does so decides: the policy of the process or its template, that of
its group, that of the thread (`with Policy(...)`), and the global default.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dragon.infrastructure import variables
from dragon.infrastructure.errors import NodeLostError, PolicyError
from dragon.infrastructure.plain_number import listed
from dragon.infrastructure.policy import Policy, choose, context
from dragon.infrastructure.variables import POLICY
from dragon.runtime.log import warn_user
from dragon.runtime.nodes import find_node, own_node, run_nodes, same_host
from dragon.runtime.run import current_run

if TYPE_CHECKING:
    from dragon.infrastructure.node_desc import NodeDescriptor
    from dragon.runtime.protocol.run import LostNode


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
_NAMING = (Policy.Placement.HOST_NAME, Policy.Placement.HOST_ID, Policy.Placement.LOCAL)
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
        position += decides.placement not in _NAMING
    return result


def place(policy: Policy | None, group_policy: Policy | None = None, *, member: Member | None = None) -> Placed:
    """Return the place of a process."""
    member = member or _context.member
    in_block = context.stack or POLICY in os.environ  # elsewhere the thread has no policy
    thread_policy = member.thread_policy if member else Policy.thread_policy() if in_block else _NOTHING
    inherited = thread_policy if thread_policy != _NOTHING else None
    where, spread, source, variable = _NOTHING, Policy.Distribution.DEFAULT, "", ""
    wanted_cpus: Sequence[int] = ()
    wanted_gpus: Sequence[float] = ()
    for level, name in ((policy, "template"), (group_policy, "group"), (inherited, "thread")):
        if level is None:
            continue
        if where is _NOTHING and level.placement != Policy.Placement.DEFAULT:
            where = level
            source = name if level.placement in _NAMING else source or name
        if spread == Policy.Distribution.DEFAULT and level.distribution != spread:
            spread, source = level.distribution, source or name
        wanted_cpus = wanted_cpus or level.cpu_affinity
        wanted_gpus = wanted_gpus or level.gpu_affinity
        variable = variable or level.gpu_env_str
    node = _choose_node(where, spread, member)
    cpus, environment = [], {}
    if wanted_cpus or wanted_gpus:
        cpus = [int(cpu) for cpu in wanted_cpus if cpu in node.cpus]
        gpus = [gpu for gpu in wanted_gpus if node.has_gpu(gpu)]
        note_missing(
            node,
            CPUs=[cpu for cpu in wanted_cpus if cpu not in node.cpus],
            GPUs=[gpu for gpu in wanted_gpus if gpu not in gpus],
        )
        if gpus and (variable := variable or node.gpu_env_str):
            environment[variable] = ",".join(node.gpu_name(gpu) for gpu in gpus)
    if inherited is not None:
        environment[POLICY] = inherited.to_text()
    rank, group = (member.rank, member.group) if member is not None else (None, "")
    return Placed(node, cpus, environment, where.placement in _NAMING, source or "global", rank, group)


def named_node(policy: Policy | None) -> NodeDescriptor | None:
    """Return the node that a policy names, or else that of the thread; None if no node is named."""
    chosen = Policy.merge(Policy.thread_policy(), policy)
    return _choose_node(chosen, chosen.distribution, None) if chosen.placement in _NAMING else None


def _choose_node(where: Policy, spread: Policy.Distribution, member: Member | None) -> NodeDescriptor:
    if where.placement == Policy.Placement.LOCAL:
        return own_node()
    if where.placement == Policy.Placement.HOST_NAME:
        found = find_node(where.host_name)
        if found is None:
            _check_lost(lambda lost: same_host(where.host_name, lost.host_name))
            raise PolicyError(f"no node of this run is called {where.host_name!r}; there is {_names(run_nodes())}")
        return found
    nodes = run_nodes()
    if where.placement == Policy.Placement.HOST_ID:
        for node in nodes:
            if node.h_uid == where.host_id:
                return node
        _check_lost(lambda lost: lost.host_id == where.host_id)
        raise PolicyError(f"no node of this run has the host id {where.host_id}; there is {_names(nodes)}")
    if len(nodes) == 1:
        return nodes[0]
    if member is not None:
        return choose(nodes, member.position, spread)
    own = own_node().index
    start = next((place for place, node in enumerate(nodes) if node.index == own), 0)
    return choose(nodes, next(_singles), spread, start)


def _check_lost(is_named: Callable[[LostNode], bool]) -> None:
    """Raise NodeLostError if the named node was part of the run and is lost."""
    if current_run() is None:
        return
    from dragon.runtime.agent_client import ask
    from dragon.runtime.protocol.run import LostNodes

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


class PlanRecord(NamedTuple):
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


def note(placed: Placed, name: str, target: Callable[..., Any] | str | None, puid: int = 0) -> None:
    """Add a placement to the record, if DRAGON_PLAN is set. Raises OSError if it cannot be written."""
    path = os.environ.get(variables.PLAN)
    if not path:
        return
    record = PlanRecord(
        name=name,
        target=name_of(target),
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
        os.write(file, json.dumps(record._asdict()).encode() + b"\n")
    finally:
        os.close(file)


def note_head(command: Sequence[str], puid: int) -> None:
    """Add the head process to the record, on its own node."""
    if os.environ.get(variables.PLAN):
        program = next((word for word in command[1:] if word.endswith(".py")), command[0])
        note(Placed(own_node(), [], {}), "head", program, puid)


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
    return [PlanRecord(**json.loads(line)) for line in lines]


# The devices that were reported already, by node and kind; and those to report at the end of a block.
_told: dict[tuple[str, str], set[float]] = {}
_gathered: dict[str, tuple[NodeDescriptor, dict[str, set[float]]]] = {}
_gathering = False
_MOST_NAMES = 4


def note_missing(node: NodeDescriptor, **devices: list[float]) -> None:
    """Warn of devices that the node lacks, each once. Raises PolicyError with --strict."""
    if not any(devices.values()):
        return
    if variables.strict():
        raise PolicyError(_text([(node, {kind: set(numbers) for kind, numbers in devices.items()})]))
    _, gathered = _gathered.setdefault(node.host_name, (node, {}))
    for kind, numbers in devices.items():
        told = _told.setdefault((node.host_name, kind), set())
        gathered.setdefault(kind, set()).update(set(numbers) - told)
        told.update(numbers)
    if not _gathering:
        _tell()


@contextmanager
def one_warning() -> Iterator[None]:
    """Warn once, at the end of the block, of all devices that the placements in it lack."""
    global _gathering
    _gathering = True
    try:
        yield
    except BaseException:
        _gathered.clear()
        raise
    finally:
        _gathering = False
    _tell()


def _tell() -> None:
    lacks = [(node, kinds) for node, kinds in _gathered.values() if any(kinds.values())]
    _gathered.clear()
    if lacks:
        warn_user(_text(lacks) + "; affinities are cut to what exists")


def _text(lacks: list[tuple[NodeDescriptor, dict[str, set[float]]]]) -> str:
    """Return the text of the warning. Nodes that lack the same devices are listed together."""
    hosts: dict[str, list[str]] = {}
    for node, kinds in lacks:
        hosts.setdefault(_lack(node, kinds), []).append(node.host_name)
    return "; ".join(f"{_all_of(names)} {lack}" for lack, names in hosts.items())


def _all_of(names: list[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} has"
    first = ", ".join(names[:_MOST_NAMES])
    return f"{first} and {len(names) - _MOST_NAMES} more have" if len(names) > _MOST_NAMES else f"{first} have"


def _lack(node: NodeDescriptor, missing: dict[str, set[float]]) -> str:
    there: dict[str, Collection[float]] = {"CPUs": node.cpus, "GPUs": node.gpus}
    return " and ".join(
        f"no {kind} {listed(numbers)} (there are {listed(there[kind]) or 'none'})"
        for kind, numbers in missing.items()
        if numbers
    )
