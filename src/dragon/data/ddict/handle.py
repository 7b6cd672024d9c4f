"""The part of a dictionary's handle that attaches, sends and drops it, and that has its managers and checkpoints."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, SupportsIndex

from dragon.data.ddict import checkpoint_files, creation
from dragon.data.ddict.bulk import Bulk, PutBatch
from dragon.data.ddict.checks import check_timeout
from dragon.data.ddict.codec import OWN, Codec
from dragon.data.ddict.creation import Descriptor
from dragon.data.ddict.lookups import Lookups
from dragon.data.ddict.profile import DDictOperationProfile
from dragon.data.ddict.scope import Scope
from dragon.data.ddict.writers import Writers
from dragon.infrastructure.ddict_errors import DDictError, DDictPersistCheckpointError
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.generic import K, V
from dragon.infrastructure.plain_number import plain_number
from dragon.runtime.handle import Event
from dragon.runtime.log import runtime_log
from dragon.runtime.nodes import node_at
from dragon.runtime.picklers import pickler_of
from dragon.shards.entries import Settings

if TYPE_CHECKING:
    from dragon.native.machine import Node

__all__ = ["DDictManagerStats", "Handle", "stats_of"]


@dataclass(frozen=True)
class DDictManagerStats:
    """The state of one manager. Memory is in bytes.

    Attributes:
        manager_id: the number of the manager.
        hostname: the host name of its node.
        total_bytes: the size of its memory.
        total_used_bytes: the used part.
        pool_free_space: the free part.
        pool_utilization: the used part in percent.
        num_keys: the number of keys in the handle's checkpoint.
        free_blocks: {free bytes: 1}, because the memory is not divided into blocks that could be counted.
        max_pool_allocations: always 0.
        max_pool_allocations_used: always 0.
        current_pool_allocations_used: the number of entries that the manager stores.
        timekeeper_stats: always empty.

    Examples:
        >>> from dragon.data.ddict import DDict
        >>> with DDict(managers_per_node=2, n_nodes=1, total_mem=16 * 2**20) as ddict:
        ...     ddict["a"] = 1
        ...     [manager.manager_id for manager in ddict.stats], sum(manager.num_keys for manager in ddict.stats)
        ([0, 1], 1)
    """

    manager_id: int
    hostname: str
    total_bytes: int
    total_used_bytes: int
    pool_free_space: int
    pool_utilization: float
    num_keys: int
    free_blocks: dict[int, int] = field(default_factory=dict)
    max_pool_allocations: int = 0
    max_pool_allocations_used: int = 0
    current_pool_allocations_used: int = 0
    timekeeper_stats: dict[str, Any] = field(default_factory=dict)


def stats_of(settings: Settings, usage: dict[str, int], keys: int) -> DDictManagerStats:
    """Return the stats of a shard from its settings, its usage and its number of keys."""
    free = usage["total"] - usage["used"]
    return DDictManagerStats(
        settings.manager,
        node_at(settings.node).host_name,
        usage["total"],
        usage["used"],
        free,
        100 * usage["used"] / usage["total"],
        keys,
        {free: 1},
        current_pool_allocations_used=usage["entries"],
    )


class Handle(MutableMapping[K, V], Generic[K, V]):
    """One process's handle of a distributed dictionary. Must not be used by several threads at the same time."""

    _creator = False

    def _use(self, scope: Scope, codec: Codec = OWN) -> None:
        """Make this object a handle of the scope."""
        self._scope, self._codec = scope, codec
        self._lookups = Lookups(scope)
        self._writers = Writers(scope)
        self._bulk = Bulk(scope, self._writers)
        self._batch: PutBatch | None = None

    @classmethod
    def _of(cls, scope: Scope, codec: Codec = OWN) -> Self:
        made = cls.__new__(cls)
        made._use(scope, codec)
        return made

    def __reduce__(self) -> Any:
        scope = self._scope
        scope.open()
        state = (scope.checkpoint, scope.timeout, scope.bound, self._codec)
        return _restored, (type(self), scope.descriptor, scope.life, state)

    def serialize(self) -> str:
        """Return text with which any process of the run can attach()."""
        self._scope.open()
        return creation.to_text(self._scope.descriptor)

    @classmethod
    def attach(cls, serialized_dict: str, *, timeout: float | None = None, trace: bool = False) -> Self:
        """Return a handle of an existing dictionary. With `trace` the handle logs its operations.

        `timeout` is in seconds; None: the dictionary's own. Raises DDictError for text that serialize() did not write,
        DestroyedError if the dictionary does not exist any more.
        """
        check_timeout(timeout)
        descriptor = creation.from_text(serialized_dict)
        scope = Scope(descriptor, _life_of(descriptor))
        if timeout is not None:
            scope.limit(plain_number(timeout))
        scope.checkpoint = descriptor.options.first
        scope.shards[0].state()  # raises if the dictionary was destroyed
        found = cls._of(scope)
        if trace:
            found.setup_logging()
        return found

    def detach(self) -> None:
        """Drop this handle. Other handles stay valid."""
        self._writers.leave()
        self._scope.drop()

    def destroy(self, allow_restart: bool = False) -> None:
        """Remove the dictionary from the memory of all nodes, once pending checkpoints are written to their files.

        Afterwards every use of it raises DestroyedError in all processes; destroy() may be called again. With
        `allow_restart` the contents are kept until the run ends, or until DDict(name=..., restart=True) continues the
        dictionary.
        """
        if self._scope.attached is None:
            return
        creation.destroy(self._scope.descriptor, allow_restart)
        self._scope.drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.destroy() if self._creator else self.detach()

    def __repr__(self) -> str:
        count = self._scope.count
        return f"<DDict {self.get_name()!r}: {count} manager{'s' * (count > 1)}>"

    def __eq__(self, other: object) -> bool:
        """Return whether both are handles of one dictionary; use dict(d) to compare contents."""
        return isinstance(other, Handle) and other._scope.descriptor.number == self._scope.descriptor.number

    def __hash__(self) -> int:
        return hash(self._scope.descriptor.number)

    def get_name(self) -> str:
        """Return the name, under which the dictionary is persisted and listed by `dragon ddict ls`."""
        return self._scope.options.name

    @property
    def timeout(self) -> float | None:
        """Seconds that an operation may take; None: no limit."""
        return self._scope.timeout

    @property
    def wait_for_keys(self) -> bool:
        """Whether reading a key waits until it is written in this checkpoint."""
        return self._scope.options.wait_for_keys

    @contextmanager
    def pickler(self, key_pickler: Any = None, value_pickler: Any = None) -> Iterator[Self]:
        """Yield a handle that uses these picklers for keys and values, within a `with` block.

        A pickler has `dumps(object) -> bytes` and `loads(bytes)`, or `dump(object, file)` and `load(file)`. Raises
        TypeError for any other object.
        """
        yield self._of(self._scope.copied(), Codec(pickler_of(key_pickler), pickler_of(value_pickler)))

    # ---- managers

    def manager(self, id: int) -> Self:
        """Return a handle that reads and writes one manager only. Raises DDictError if there is no such manager."""
        count = self._scope.count
        if not isinstance(id, SupportsIndex) or not 0 <= int(id) < count:
            raise DDictError(f"there is no manager {id!r}; there are 0 to {count - 1}", "INVALID_ARGUMENT")
        scope = self._scope.copied()
        scope.bind(int(id))
        return self._of(scope, self._codec)

    def which_manager(self, key: Any) -> int:
        """Return the manager that the hash of a key says."""
        return self._scope.place(self._codec.key(key))

    @property
    def local_managers(self) -> list[int]:
        """The managers on this node."""
        return [shard.settings.manager for shard in self._scope.open() if shard.local is not None]

    @property
    def local_manager(self) -> int | None:
        """The first manager on this node; None if there is none."""
        return next(iter(self.local_managers), None)

    @property
    def main_manager(self) -> int:
        """The first manager on this node, or manager 0 if this node has none."""
        return self.local_manager or 0

    @property
    def manager_nodes(self) -> list[Node]:
        """The node of each manager."""
        from dragon.native.machine import Node

        return [Node(node_at(settings.node).host_name) for settings in self._scope.descriptor.shards]

    @property
    def empty_managers(self) -> list[int]:
        """Managers that were empty after a restart, because their nodes were lost."""
        self._scope.open()
        return list(self._scope.options.empty)

    @property
    def stats(self) -> list[DDictManagerStats]:
        """The memory and the number of keys of every manager."""
        scope = self._scope
        usages = scope.on_all("usage")
        oldest = [state[0] for state in scope.on_all("state")]
        counts = [
            shard.begin("count", max(scope.checkpoint, first)).result(scope.timeout)
            for shard, first in zip(scope.used(), oldest, strict=True)
        ]
        settings = [shard.settings for shard in scope.used()]
        return [stats_of(*one) for one in zip(settings, usages, counts, strict=True)]

    @property
    def dstats(self) -> dict[int, DDictManagerStats]:
        """The memory and the number of keys, by manager."""
        return {one.manager_id: one for one in self.stats}

    def profile(self) -> dict[str, DDictOperationProfile]:
        """Return the count, bytes and duration of this handle's operations since profile_reset(), by operation.

        The first call of either method starts the measurement, for this handle and those that manager() and pickler()
        make from it.
        """
        return self._scope.observe().profile()

    def profile_reset(self) -> None:
        """Reset the numbers of profile() to zero."""
        self._scope.observe().reset()

    def setup_logging(self, level: int = logging.DEBUG) -> None:
        """Log each operation of this handle from now on, at level DEBUG of the log `dragon.ddict`, whose level is set
        to `level`."""
        log = runtime_log("ddict")
        log.setLevel(level)
        self._scope.observe().log = log

    def freeze(self) -> None:
        """Refuse every change from now on, in all processes."""
        self._scope.on_all("freeze", True)

    def unfreeze(self) -> None:
        """Allow changes again."""
        self._scope.on_all("freeze", False)

    @property
    def is_frozen(self) -> bool:
        """Whether changes are refused."""
        return any(shard.state()[2] for shard in self._scope.used())

    # ---- checkpoints

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint that this handle reads and writes."""
        return self._scope.checkpoint

    @checkpoint_id.setter
    def checkpoint_id(self, value: int) -> None:
        value = operator.index(value)
        if value < 0:
            raise ValueError("checkpoint_id cannot be negative")
        self._go_to(value)

    @property
    def current_checkpoint_id(self) -> int:
        """The checkpoint that this handle reads and writes, as `checkpoint_id`."""
        return self._scope.checkpoint

    def checkpoint(self) -> None:
        """Move this handle to the next checkpoint."""
        self._go_to(self._scope.checkpoint + 1)

    def rollback(self) -> None:
        """Move this handle to the previous checkpoint; in checkpoint 0 it stays."""
        self._go_to(max(0, self._scope.checkpoint - 1))

    def sync_to_newest_checkpoint(self) -> None:
        """Move this handle to the newest checkpoint that any client has written."""
        self._go_to(self._checkpoints()[1])

    def _checkpoints(self) -> tuple[int, int]:
        """Return the oldest checkpoint that all managers hold, and the newest that any holds."""
        states = self._scope.on_all("state")
        return max(int(state[0]) for state in states), max(int(state[1]) for state in states)

    def _go_to(self, checkpoint: int) -> None:
        if self._batch is not None:
            raise DDictError("a batch of puts belongs to one checkpoint: end_batch_put() first", "INVALID_OPERATION")
        self._writers.go_to(checkpoint)

    def persist(self) -> None:
        """Write the current checkpoint to disk. Does nothing without a persister, or with a persist_count of 0.

        All managers write what they held at one moment, for which writers wait some milliseconds; they continue while
        the files are written.
        """
        options = self._scope.options
        if options.persister != "NULL" and options.persist_count:
            checkpoint_files.persist(self._scope)

    def persisted_ids(self) -> list[int]:
        """Return the checkpoints that can be restored, sorted. Waits for files that are being written."""
        return checkpoint_files.persisted(self._scope)

    def restore(self, chkpt: int) -> None:
        """Replace the contents by a persisted checkpoint, and move to it. Raises DDictPersistCheckpointError.

        If it was written by a different number of managers, every node reads all files.
        """
        if self._batch is not None:
            raise DDictError("restore() within a batch of puts: end_batch_put() first", "INVALID_OPERATION")
        chkpt = operator.index(chkpt)
        if checkpoint_files.restore(self._scope, chkpt):
            self._writers.note_chosen()
        self._scope.checkpoint = chkpt

    def advance(self) -> None:
        """Restore the next persisted checkpoint into a read-only dictionary.

        Raises DDictError for any other dictionary, DDictPersistCheckpointError if there is no later checkpoint.
        """
        if not self._scope.options.read_only:
            raise DDictError(
                "advance() is for read-only dictionaries; use checkpoint() for others", "INVALID_OPERATION"
            )
        later = [number for number in self.persisted_ids() if number > self._scope.checkpoint]
        if not later:
            raise DDictPersistCheckpointError(f"there is no checkpoint after {self._scope.checkpoint} on disk")
        self.restore(later[0])


def _restored(cls: type[Handle], descriptor: Descriptor, life: Event | None, state: tuple[Any, ...]) -> Handle:
    scope = Scope(descriptor, life)
    scope.checkpoint, timeout, bound, codec = state
    scope.limit(timeout)
    if bound is not None:
        scope.bind(bound)
    return cls._of(scope, codec)


def _life_of(descriptor: Descriptor) -> Event | None:
    """Return the object that keeps a dictionary while a process is attached; None if its node is lost.

    Raises DestroyedError if the dictionary does not exist any more.
    """
    try:
        return Event._attached(descriptor.life)
    except NodeLostError:
        return None  # the creator's node is lost; the shards of the other nodes are kept until the run ends
