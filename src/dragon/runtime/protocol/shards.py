"""What is asked about the shards of distributed dictionaries, but for what is done with their contents."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from dragon.infrastructure.messages import Name
from dragon.runtime.protocol.request import OnNode, Request

__all__ = [
    "CreateShard",
    "DescribeDictionary",
    "DestroyDictionary",
    "HoldCheckpoint",
    "IsAlive",
    "KeepDictionary",
    "KeptShards",
    "ListDictionaries",
    "OwnCopy",
    "PauseWriters",
    "Persist",
    "Persisted",
    "RestoreShards",
    "ReviveShard",
    "Settings",
    "ShardChannel",
    "ShardHolders",
]

Answer_co = TypeVar("Answer_co", covariant=True)


class Settings(msgspec.Struct, frozen=True):
    """What a shard is made with. `capacity` is in bytes."""

    manager: int
    managers: int
    capacity: int
    folder: str = ""
    words: Name = (0, 0, 0)
    lock: Name = (0, 0, 0)  # of whoever writes
    node: int = 0
    name: str = ""
    working_set: int = 1
    wait_for_keys: bool = False
    read_only: bool = False
    persist_freq: int = 0
    persist_count: int = 0
    persist_path: str = ""
    holders: list[int] = []  # with replicas: the nodes that keep it, the one that decides first
    linearizable: bool = False  # with replicas: whether reads ask the one that decides, and that one all others


class ShardChannel(OnNode[Name], tag="shards.service", frozen=True):
    """The channel through which other nodes' processes reach the shards of this one."""


class ListDictionaries(OnNode[list[str]], tag="shards.list", frozen=True):
    """The descriptors of the dictionaries that were made there."""


class IsAlive(OnNode[bool], tag="shards.is_alive", frozen=True):
    """Whether exactly that process lives."""

    pid: int
    start_time: int


# ---- of a dictionary


class CreateShard(OnNode[Settings], tag="shards.create", frozen=True):
    """Make a shard; its settings with its folder and its words. A copy that `teacher` (node, epoch, number) is to fill
    counts once the front end has decided so. Raises DDictUnableToCreateError."""

    number: str
    settings: Settings
    teacher: tuple[int, int, int] | None = None


class DescribeDictionary(Request[None], tag="shards.describe", frozen=True):
    """Keep what others need to attach to a dictionary that was made on this node, while `life` exists."""

    number: str
    descriptor: str
    nodes: list[int]
    life: Name


class DestroyDictionary(OnNode[None], tag="shards.destroy", frozen=True):
    """Remove a dictionary's shards from a node, and finish what is due to be written of them."""

    number: str


class KeepDictionary(OnNode[None], tag="shards.keep", frozen=True):
    """Destroy a dictionary, but keep what its shards there hold for ReviveShard, under a name."""

    number: str
    name: str
    descriptor: str


class KeptShards(OnNode[tuple[str, list[int]] | None], tag="shards.kept", frozen=True):
    """The descriptor of what is kept under a name, and the managers of which the node has the shards."""

    name: str


class ReviveShard(OnNode[Settings], tag="shards.revive", frozen=True):
    """Make a shard of what is kept of one; its settings."""

    number: str
    name: str
    manager: int
    holders: list[int]


# ---- of one manager's shard


class _OfManager(OnNode[Answer_co], Generic[Answer_co], frozen=True):
    number: str
    manager: int


class OwnCopy(_OfManager[Settings | None], tag="shards.copy", frozen=True):
    """The settings of the node's copy, None where it has none that counts."""


class ShardHolders(_OfManager[list[int]], tag="shards.holders", frozen=True):
    """The nodes that keep a replicated shard, the one that decides first. Raises LookupError if not that node."""


class PauseWriters(_OfManager[None], tag="shards.pause", frozen=True):
    """Have writers wait, or go on."""

    on: bool


class HoldCheckpoint(_OfManager[int], tag="shards.hold", frozen=True):
    """Keep a checkpoint as it is once the writer that is at it is done; a number for Persist."""

    checkpoint: int


class Persist(_OfManager[int | None], tag="shards.persist", frozen=True):
    """Write a checkpoint: one that is held, and the number of its records; or else as it is now, which is only
    begun. Raises DDictPersistCheckpointError."""

    checkpoint: int
    held: int = 0


class Persisted(_OfManager[dict[int, int]], tag="shards.persisted", frozen=True):
    """The checkpoints of which the node has what it needs in files; how many managers wrote each."""


class RestoreShards(OnNode[bool], tag="shards.restore", frozen=True):
    """Fill shards with what the files of `written_by` managers hold, once those were found whole; whether a key lies
    with another manager than its hash says. Raises DDictPersistCheckpointError."""

    number: str
    managers: list[int]
    checkpoint: int
    written_by: int
