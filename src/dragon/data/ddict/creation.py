"""Checks the parameters of a dictionary, places its managers, creates it, and finds one again to restart it."""

from __future__ import annotations

import base64
import os
import random
import re
import string
import time
import warnings
from pathlib import Path
from typing import ClassVar

from dragon.infrastructure.ddict_errors import DDictError, DDictUnableToCreateError
from dragon.infrastructure.errors import NotSupportedError
from dragon.infrastructure.plain_number import plain_number
from dragon.infrastructure.policy import Policy
from dragon.infrastructure.start_request import Name
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
    Settings,
)
from dragon.runtime.run import this_run
from dragon.shards.snapshot import files_in

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


def nodes_of(
    managers_per_node: int | None, n_nodes: int | None, policy: Policy | list[Policy] | None, managers_per_policy: int
) -> list[int]:
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


class CheckpointPersister:
    """The base class of the ways to persist, which the agents implement. Subclasses of a program are not supported.

    Attributes:
        kind: the name of the way to persist.
    """

    kind: ClassVar[str] = ""


class NULLCheckpointPersister(CheckpointPersister):
    """Writes nothing.

    Examples:
        >>> from dragon.data.ddict import DDict, NULLCheckpointPersister
        >>> with DDict(1, 1, 16 * 2**20, persister_class=NULLCheckpointPersister) as ddict:
        ...     ddict["a"] = 1
        ...     ddict.persisted_ids()
        []
    """

    kind = "NULL"


class PosixCheckpointPersister(CheckpointPersister):
    """Writes files `{name}_{manager}_{checkpoint}.{set}.ddict` to the dictionary's persist_path; those of one persist()
    have the same `set`.

    Examples:
        >>> from dragon.data.ddict import DDict, PosixCheckpointPersister
        >>> options = {"persist_freq": 1, "persist_count": 2, "persister_class": PosixCheckpointPersister}
        >>> with DDict(1, 1, 16 * 2**20, name="model", **options) as ddict:
        ...     ddict["step"] = 0
        ...     ddict.persist()
        ...     ddict.persisted_ids()
        [0]
    """

    kind = "POSIX"


class DAOSCheckpointPersister(CheckpointPersister):
    """Not supported: DDict() raises NotSupportedError for it."""

    kind = "DAOS"


_MAX_NAME_BYTES = 180  # bytes; a file name has 255 at most, and also contains manager, checkpoint and set

_NAMES = {int: "a whole number", str: "a string", bool: "True or False"}


def check_parameters(
    options: Options,
    managers_per_node: int | None,
    n_nodes: int | None,
    total_mem: int,
    policy: Policy | list[Policy] | None,
    managers_per_policy: int,
    restart: bool,
    restore_from: int | None,
    persister_class: type[CheckpointPersister],
) -> None:
    """Raise the exceptions that DDict() documents if its parameters are invalid or do not fit together."""
    waits = options.wait_for_keys or options.wait_for_writers
    _check_kinds(int, managers_per_policy=managers_per_policy, restore_from=0 if restore_from is None else restore_from)
    for field in msgspec.structs.fields(Options):
        if field.type in (int, bool):
            _check_kinds(field.type, **{field.name: getattr(options, field.name)})
    _check_kinds(bool, restart=restart)
    check_name(options.name, persister_class is not NULLCheckpointPersister)
    if not isinstance(options.persist_path, Path):
        _check_kinds(str, persist_path=options.persist_path)
    check_timeout(options.timeout)
    _check_numbers(total_mem, options.working_set_size, waits, options.persist_freq, options.persist_count)
    _check_placement(policy, managers_per_node, n_nodes)
    _check_persister(persister_class, options.persist_freq)
    if not 1 <= options.replicas <= len(run_nodes()):
        raise ValueError(f"replicas must be from 1 to the run's {len(run_nodes())} nodes, not {options.replicas}")
    _check_restoring(options.name, restart, options.read_only, restore_from, policy)
    if options.read_only and (options.working_set_size != 1 or waits or options.persist_count):
        raise AttributeError("read_only needs a working_set_size of 1, no wait_for_... and a persist_count of 0")


def _check_kinds(kind: type, **parameters: object) -> None:
    """Raise TypeError for a parameter that is not of this type."""
    for name, value in parameters.items():
        if not isinstance(plain_number(value), kind) or (isinstance(value, bool) and kind is not bool):
            raise TypeError(f"{name} must be {_NAMES[kind]}, not {value!r}")


def check_timeout(timeout: float | None) -> None:
    """Raise TypeError or ValueError unless `timeout` is a number of seconds from 0 on, or None."""
    if timeout is None:
        return
    if not isinstance(plain_number(timeout), (int, float)) or isinstance(timeout, bool):
        raise TypeError(f"timeout must be a number of seconds, or None, not {timeout!r}")
    if not timeout >= 0:
        raise ValueError(f"timeout must be at least 0 seconds, not {timeout!r}")


def _check_numbers(total_mem: int, working_set_size: int, waits: bool, persist_freq: int, persist_count: int) -> None:
    """Raise AttributeError or ValueError for numbers that are out of range."""
    if not isinstance(plain_number(total_mem), int) or isinstance(total_mem, bool):
        raise AttributeError(f"total_mem must be a whole number of bytes or a size such as '64M', not {total_mem!r}")
    if total_mem < 1:
        raise ValueError(f"total_mem must be at least 1, not {total_mem}")
    if working_set_size < 1:
        raise ValueError(f"working_set_size must be at least 1, not {working_set_size}")
    if waits and working_set_size < 2:
        raise ValueError("wait_for_keys and wait_for_writers need a working_set_size of at least 2")
    if persist_freq < 0 or persist_count < -1:
        raise ValueError(f"persist_freq must be >= 0 and persist_count >= -1, not {persist_freq} and {persist_count}")


def _check_placement(policy: object, managers_per_node: object, n_nodes: object) -> None:
    """Raise TypeError for an invalid policy, AttributeError if the number of managers is given twice or not at all."""
    for one in policy if isinstance(policy, (list, tuple)) else [policy]:
        if one is not None and not isinstance(one, Policy):
            raise TypeError(f"policy must be a Policy or a list of policies, not {policy!r}")
    if isinstance(policy, (list, tuple)):
        if managers_per_node is not None or n_nodes is not None:
            raise AttributeError("with a list of policies managers_per_node and n_nodes must be None")
    elif policy is not None and n_nodes is None:
        raise AttributeError("with one policy n_nodes must be given")


def _check_persister(persister: type[CheckpointPersister], persist_freq: int) -> None:
    """Raise NotSupportedError for a class that is not supported, AttributeError if nothing would be written."""
    if persister is NULLCheckpointPersister and persist_freq:
        raise AttributeError("persist_freq needs a persister_class that writes: PosixCheckpointPersister")
    if persister not in (NULLCheckpointPersister, PosixCheckpointPersister):
        raise NotSupportedError(
            f"{getattr(persister, '__name__', persister)} is not offered; "
            "PosixCheckpointPersister writes to any file system that is mounted"
        )


def check_name(name: str, persists: bool) -> None:
    """Raise TypeError if the name is not a string, ValueError if it cannot be part of the name of persisted files."""
    _check_kinds(str, name=name)
    if persists and ("/" in name or "\0" in name or len(os.fsencode(name)) > _MAX_NAME_BYTES):
        raise ValueError(
            f'name must be a valid file-name prefix (at most {_MAX_NAME_BYTES} bytes, no "/"), not {name!r}'
        )


def _check_restoring(name: str, restart: bool, read_only: bool, restore_from: int | None, policy: object) -> None:
    """Raise AttributeError or RuntimeError if the parameters do not determine what to restore."""
    if restore_from is not None and not name:
        raise AttributeError("restore_from needs the name under which the dictionary was persisted")
    if restart and policy is not None:
        raise AttributeError("restart keeps the placement of the managers: remove the policy")
    if restart and not name:
        raise RuntimeError("There is an exception initializing ddict: restart needs a name")
    if read_only and (not name or restore_from is None):
        raise AttributeError("read_only needs name and restore_from")
