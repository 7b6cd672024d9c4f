"""Requests about the shards of distributed dictionaries, except for operations on their contents."""

from __future__ import annotations

from typing import Generic, TypeVar

from dragon.infrastructure.start_request import Name
from dragon.infrastructure.structs import msgspec
from dragon.runtime.protocol.request import OnNode, Request

Answer_co = TypeVar("Answer_co", covariant=True)


class Settings(msgspec.Struct, frozen=True):
    """The settings of a shard. `capacity` is in bytes."""

    manager: int
    managers: int
    capacity: int
    folder: str = ""
    words: Name = (0, 0, 0)
    lock: Name = (0, 0, 0)  # held by the writer
    node: int = 0
    name: str = ""
    working_set: int = 1
    wait_for_keys: bool = False
    read_only: bool = False
    persist_freq: int = 0
    persist_count: int = 0
    persist_path: str = ""
    holders: list[int] = []  # with replicas: the nodes that hold it, the primary first
    linearizable: bool = False  # with replicas: whether reads ask the primary, which asks all other replicas


class ShardChannel(OnNode[Name]):
    """Return the channel to which other nodes' processes send operations on the shards of this node."""


class ListDictionaries(OnNode[list[str]]):
    """Return the descriptors of the dictionaries that were made on the node."""


class IsAlive(OnNode[bool]):
    """Return whether exactly that process is alive."""

    pid: int
    start_time: int


# ---- of a dictionary


class CreateShard(OnNode[Settings]):
    """Make a shard. Replies with its settings, with its folder and words filled in. Raises DDictUnableToCreateError.

    A replica that `teacher` (node, epoch, number) fills becomes valid once the front end has decided so.
    """

    number: str
    settings: Settings
    teacher: tuple[int, int, int] | None = None


class DescribeDictionary(Request[None]):
    """Keep what others need to attach to a dictionary of this node, as long as `life` exists."""

    number: str
    descriptor: str
    nodes: list[int]
    life: Name


class DestroyDictionary(OnNode[None]):
    """Remove a dictionary's shards from a node, after their pending writes to disk."""

    number: str


class KeepDictionary(OnNode[None]):
    """Destroy a dictionary, but keep the contents of its shards on the node for ReviveShard, under a name."""

    number: str
    name: str
    descriptor: str


class KeptShards(OnNode[tuple[str, list[int]] | None]):
    """Return the descriptor kept under a name and the managers whose shards the node keeps; None if it keeps none."""

    name: str


class ReviveShard(OnNode[Settings]):
    """Make a shard with the contents kept for it. Replies with its settings."""

    number: str
    name: str
    manager: int
    holders: list[int]


# ---- of one manager's shard


class _OfManager(OnNode[Answer_co], Generic[Answer_co]):
    number: str
    manager: int


class OwnCopy(_OfManager[Settings | None]):
    """Return the settings of the node's replica; None if it has no valid one."""


class ShardHolders(_OfManager[list[int]]):
    """Return the holders of a replicated shard, the primary first. Raises LookupError if the node is none of them."""


class PauseWriters(_OfManager[None]):
    """Block writers of the shard, or let them continue."""

    on: bool


class HoldCheckpoint(_OfManager[int]):
    """Keep a checkpoint in its present state, after the current write. Replies with a number for Persist."""

    checkpoint: int


class Persist(_OfManager[str]):
    """Write a checkpoint to disk, and reply with the identity of the set of files to which its file belongs.

    With `held`, write that state; `at` orders the calls of persist(). Otherwise only start to write the current state.
    Raises DDictPersistCheckpointError.
    """

    checkpoint: int
    held: int = 0
    at: int = 0


class Persisted(_OfManager[dict[int, dict[str, int]]]):
    """Return the checkpoints whose files the node has as far as it needs them: the identities of their sets of files,
    and how many managers wrote each set. `only`: of this checkpoint."""

    only: int | None = None


class TidyFiles(_OfManager[None]):
    """Remove the files of a set that is incomplete, or those that a complete one replaces."""

    checkpoint: int
    of_set: str
    complete: bool


class RestoreShards(OnNode[bool]):
    """Fill shards from the files that `written_by` managers wrote as one set, after these were checked to be complete.

    From the time `since` on, the dictionary writes other sets than before. Replies with whether a key is with another
    manager than its hash says. Raises DDictPersistCheckpointError.
    """

    number: str
    managers: list[int]
    checkpoint: int
    of_set: str
    written_by: int
    since: int
