"""Places a dictionary's managers, creates the dictionary, and finds one again to restart it."""

from __future__ import annotations

import base64
import os
import random
import re
import string
import time
import warnings
from typing import Any

from dragon.infrastructure.ddict_errors import DDictError, DDictUnableToCreateError
from dragon.infrastructure.messages import Name
from dragon.infrastructure.plain_number import plain_number
from dragon.infrastructure.policy import Policy
from dragon.infrastructure.structs import msgspec
from dragon.runtime.agent_client import ask
from dragon.runtime.handle import Event, place_in_program
from dragon.runtime.nodes import run_nodes
from dragon.runtime.placement import place
from dragon.runtime.protocol.shards import (
    CreateShard,
    DescribeDictionary,
    DestroyDictionary,
    KeepDictionary,
    KeptShards,
    ReviveShard,
)
from dragon.runtime.run import this_run
from dragon.shards.entries import Settings
from dragon.shards.snapshot import files_in

__all__ = [
    "DDICT_MIN_SIZE",
    "Descriptor",
    "Options",
    "beginning_at",
    "create",
    "describe",
    "from_text",
    "moment",
    "revive",
    "to_text",
]

# What the settings of each shard have from the options of the dictionary.
_SAME = ("name", "wait_for_keys", "read_only", "persist_freq", "persist_count", "persist_path", "linearizable")

DDICT_MIN_SIZE = 2 * 2**20
"""The size of the smallest shard in bytes."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a dictionary that its clients need. Times are in seconds."""

    name: str
    working_set_size: int = 1
    wait_for_keys: bool = False
    wait_for_writers: bool = False
    timeout: float | None = None
    read_only: bool = False
    persist_freq: int = 0
    persist_count: int = 0
    persist_path: str = ""
    persister: str = "NULL"
    replicas: int = 1
    linearizable: bool = False
    first: int = 0  # the checkpoint in which handles begin
    empty: list[int] = []  # managers whose contents were lost, after a restart

    def __post_init__(self) -> None:
        for field in ("working_set_size", "timeout", "persist_freq", "persist_count", "replicas"):
            msgspec.structs.force_setattr(self, field, plain_number(getattr(self, field)))


class Descriptor(msgspec.Struct, frozen=True):
    """All that a process needs to attach. `life` is an object that exists while any process is attached."""

    number: str
    options: Options
    shards: list[Settings]
    life: Name


def to_text(descriptor: Descriptor) -> str:
    """Return the descriptor as text."""
    return base64.b64encode(msgspec.msgpack.encode(descriptor)).decode()


def from_text(text: str) -> Descriptor:
    """Return the descriptor that to_text() wrote. Raises DDictError for other text."""
    try:
        return msgspec.msgpack.decode(base64.b64decode(text, validate=True), type=Descriptor)
    except (ValueError, TypeError, msgspec.MsgspecError) as error:
        raise DDictError(f"this is not what serialize() gave: {error}", "INVALID_ARGUMENT") from error


def new_name() -> str:
    """Return a unique name that says where the program makes the dictionary, for one that was given none."""
    letters = "".join(random.SystemRandom().choices(string.ascii_lowercase, k=10))
    return "-".join([*re.findall(r"[\w.]+", place_in_program()[-60:]), letters])


def nodes_of(managers_per_node: int | None, n_nodes: int | None, policy: Any, managers_per_policy: int) -> list[int]:
    """Return the node of each manager. Raises the errors that DDict() documents for parameters that cannot be met."""
    if isinstance(policy, (list, tuple)):
        if not policy:  # System().gpu_policies() is empty without GPUs
            warnings.warn(
                f"the list of policies is empty: each node has {managers_per_policy} managers",
                RuntimeWarning,
                stacklevel=3,
            )
            return [node.index for node in run_nodes() for _ in range(max(1, managers_per_policy))]
        if managers_per_policy < 1:
            raise ValueError(f"managers_per_policy must be at least 1, not {managers_per_policy}")
        return [place(one).node.index for one in policy for _ in range(managers_per_policy)]
    managers_per_node, n_nodes = plain_number(managers_per_node), plain_number(n_nodes)
    if not isinstance(managers_per_node, int) or not isinstance(n_nodes, int):
        raise AttributeError("managers_per_node and n_nodes must be whole numbers, or policy a list of policies")
    if managers_per_node < 1 or n_nodes < 1:
        raise ValueError(f"managers_per_node and n_nodes must be at least 1, not {managers_per_node} and {n_nodes}")
    nodes = run_nodes()
    if n_nodes > len(nodes):
        raise DDictUnableToCreateError(f"n_nodes is {n_nodes}, but the run has {len(nodes)} nodes")
    if Policy.merge(Policy.thread_policy(), policy).placement != Policy.Placement.DEFAULT:
        return [place(policy).node.index] * (managers_per_node * n_nodes)
    return [nodes[i % n_nodes].index for i in range(managers_per_node * n_nodes)]


def create(nodes: list[int], total_mem: int, options: Options) -> tuple[Descriptor, Event]:
    """Create a dictionary with a manager on each of `nodes`. Raises DDictUnableToCreateError."""
    life = Event()
    number = _new_number(options)
    capacity = max(plain_number(total_mem) // len(nodes), DDICT_MIN_SIZE)
    shards: list[Settings] = []
    try:
        for manager, node in enumerate(nodes):
            holders = _holders(node, options.replicas)
            same = {name: getattr(options, name) for name in _SAME}
            kept_by = holders if options.replicas > 1 else []
            settings = Settings(
                manager, len(nodes), capacity, working_set=options.working_set_size, holders=kept_by, **same
            )
            made = [ask(CreateShard(holder, number, settings)) for holder in holders]
            shards.append(made[0])
        descriptor = Descriptor(number, options, shards, life._name())
        describe(descriptor)
    except BaseException:
        for node in _all_nodes(nodes, options):
            ask(DestroyDictionary(node, number))
        raise
    return descriptor, life


def _holders(first: int, count: int) -> list[int]:
    """Return the nodes that hold a shard: the manager's node, and those that follow it."""
    nodes = [node.index for node in run_nodes()]
    start = nodes.index(first)
    return [nodes[(start + i) % len(nodes)] for i in range(count)]


def _all_nodes(nodes: list[int], options: Options) -> list[int]:
    """Return the nodes on which shards may be."""
    return sorted({node.index for node in run_nodes()} if options.replicas > 1 else set(nodes))


def revive(name: str, timeout: float | None) -> tuple[Descriptor, Event] | None:
    """Restart the dictionary of that name that was destroyed with allow_restart; managers of lost nodes begin empty."""
    holders: dict[int, list[int]] = {}
    text = ""
    for node in run_nodes():
        kept = ask(KeptShards(node.index, name))
        if kept:
            text, managers = kept
            for manager in managers:
                holders.setdefault(manager, []).append(node.index)
    if not text:
        return None
    old = from_text(text)
    life, number, shards = Event(), _new_number(old.options), []
    for settings in old.shards:
        nodes = holders.get(settings.manager, [])
        nodes.sort(key=(settings.holders or [settings.node]).index)
        replicated = nodes if settings.holders else []
        made = [ask(ReviveShard(node, number, name, settings.manager, replicated)) for node in nodes]
        if not made:
            lost = msgspec.structs.replace(settings, folder="", holders=[])
            made = [ask(CreateShard(run_nodes()[0].index, number, lost))]
        shards.append(made[0])
    empty = [settings.manager for settings in old.shards if settings.manager not in holders]
    descriptor = Descriptor(
        number, msgspec.structs.replace(old.options, timeout=timeout, empty=empty), shards, life._name()
    )
    describe(descriptor)
    return descriptor, life


def _new_number(options: Options) -> str:
    return f"{moment(options):016x}{os.urandom(4).hex()}"


def moment(options: Options) -> int:
    """Return the time in nanoseconds, but one later than those of the dictionary's files, however clocks are set."""
    if not options.persist_count:
        return time.time_ns()
    latest = max((file.set[:16] for file in files_in(options.persist_path) if file.name == options.name), default="")
    return max(time.time_ns(), int(latest or "0", 16) + 1)


def beginning_at(descriptor: Descriptor, checkpoint: int) -> Descriptor:
    """Return a descriptor of the same dictionary whose handles begin in another checkpoint."""
    changed = msgspec.structs.replace(descriptor, options=msgspec.structs.replace(descriptor.options, first=checkpoint))
    describe(changed)
    return changed


def describe(descriptor: Descriptor) -> None:
    """Register the descriptor with this node's agent, so that others can attach."""
    nodes = _all_nodes([settings.node for settings in descriptor.shards], descriptor.options)
    ask(DescribeDictionary(descriptor.number, to_text(descriptor), nodes, descriptor.life))


def destroy(descriptor: Descriptor, allow_restart: bool = False) -> None:
    """Remove a dictionary from all nodes; with `allow_restart` its contents are kept."""
    if allow_restart:
        text = to_text(descriptor)
        for known in run_nodes():
            ask(KeepDictionary(known.index, descriptor.number, descriptor.options.name, text))
        return
    here = this_run().node
    living = {node.index for node in run_nodes()}
    home = descriptor.life[2] >> 8
    nodes = {home, here, *_all_nodes([settings.node for settings in descriptor.shards], descriptor.options)}
    for node in nodes:
        if node in living:
            ask(DestroyDictionary(node, descriptor.number))
