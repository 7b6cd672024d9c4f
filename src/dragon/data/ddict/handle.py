"""The part of a dictionary's handle that attaches, sends and drops it, and has its single keys, managers and
checkpoints."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Self, SupportsIndex, TypeVar, overload

from dragon.data.ddict import creation, writers
from dragon.data.ddict.creation import Descriptor, check_timeout
from dragon.data.ddict.profile import DDictOperationProfile
from dragon.data.ddict.scope import Scope
from dragon.data.ddict.shards import AnyShard, Pending
from dragon.data.ddict.writers import Batch, Writers
from dragon.infrastructure.ddict_errors import DDictError, DDictKeyError, DDictPersistCheckpointError
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.generic import K, V
from dragon.infrastructure.plain_number import plain_number
from dragon.runtime.handle import Event
from dragon.runtime.log import runtime_log
from dragon.runtime.nodes import node_at
from dragon.runtime.picklers import Pickler, pickler_of
from dragon.runtime.protocol.shards import Settings
from dragon.shards.records import FOREIGN, Record, decode_key, encode_key, encode_value
from dragon.shards.shard import MISSING, PERSISTENT

if TYPE_CHECKING:
    from dragon.native.machine import Node

_UNSET: object = object()
T = TypeVar("T")


def equal(one: object, other: object) -> bool:
    """Return whether two values are equal. Arrays and tensors are if their shapes and all their elements are equal."""
    if getattr(one, "shape", ()) != getattr(other, "shape", ()):
        return False
    found = one == other
    return bool(found.all() if hasattr(found, "all") else found)


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


@dataclass(frozen=True)
class Codec:
    """The picklers of a handle; None: the dictionary's own encoding."""

    keys: Pickler | None = None
    values: Pickler | None = None

    def key(self, key: object) -> bytes:
        """Return the encoded form of a key."""
        return encode_key(key) if self.keys is None else FOREIGN + bytes(self.keys.dumps(key))

    def decoded(self, key: bytes) -> Any:
        """Return the key of an encoded form."""
        keys = self.keys
        return keys.loads(key[len(FOREIGN) :]) if keys is not None and key.startswith(FOREIGN) else decode_key(key)

    def record(self, value: object) -> Record:
        """Return the record of a value."""
        return encode_value(value if self.values is None else self.values.dumps(value))

    def loaded(self, value: Any) -> Any:
        """Return the value that was put, from the value that a shard returned, which may be MISSING."""
        return value if self.values is None or value is MISSING else self.values.loads(value)


OWN = Codec()
"""The codec without picklers."""


class Handle(MutableMapping[K, V], Generic[K, V]):
    """One process's handle of a distributed dictionary. Must not be used by several threads at the same time."""

    _creator = False

    def _use(self, scope: Scope, codec: Codec = OWN) -> None:
        """Make this object a handle of the scope."""
        self._scope, self._codec = scope, codec
        self._writers = Writers(scope)
        self._batch: Batch | None = None

    @classmethod
    def _of(cls, scope: Scope, codec: Codec = OWN) -> Self:
        made = cls.__new__(cls)
        made._use(scope, codec)
        return made

    def __reduce__(self) -> tuple[object, ...]:
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
        life: Event | None = None
        with suppress(NodeLostError):  # of the creator; the shards of the other nodes are kept until the run ends
            life = Event._attached(descriptor.life)
        scope = Scope(descriptor, life)
        if timeout is not None:
            scope.limit(plain_number(timeout))
        scope.checkpoint = descriptor.options.first
        scope.shards[0].call("state")  # raises if the dictionary was destroyed
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

    def __exit__(self, *exc_info: object) -> None:
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
    def pickler(self, key_pickler: object = None, value_pickler: object = None) -> Iterator[Self]:
        """Yield a handle that uses these picklers for keys and values, within a `with` block.

        A pickler has `dumps(object) -> bytes` and `loads(bytes)`, or `dump(object, file)` and `load(file)`. Raises
        TypeError for any other object.
        """
        yield self._of(self._scope.copied(), Codec(pickler_of(key_pickler), pickler_of(value_pickler)))

    # ---- one key

    def __getitem__(self, key: K) -> V:
        scope, codec = self._scope, self._codec
        encoded = encode_key(key) if codec is OWN else codec.key(key)
        shard = scope.one or scope.shard(encoded)
        value = shard.value(encoded, scope.checkpoint)
        if value is MISSING:
            if scope.options.wait_for_keys:
                value = scope.wait_for_key(encoded, key)
            else:
                value = scope.value_elsewhere(shard, encoded)
                if value is MISSING:
                    raise scope.missing(key, shard)
        return value if codec is OWN else codec.loaded(value)  # type: ignore[return-value]

    def __setitem__(self, key: K, value: V) -> None:
        scope, codec = self._scope, self._codec
        encoded, record = (
            (encode_key(key), encode_value(value)) if codec is OWN else (codec.key(key), codec.record(value))
        )
        if self._batch is not None:
            self._add(encoded, record, 0)
            return
        shard = scope.one or scope.shard(encoded)
        if self._writers.guarded:
            self._writers.allow(shard)
        shard.put(encoded, record, scope.checkpoint)

    def pput(self, key: K, value: V) -> None:
        """Put a value that later checkpoints have too. Raises DDictError within a batch that is not one of persistent
        puts."""
        encoded, record = self._codec.key(key), self._codec.record(value)
        if self._batch is not None:
            self._add(encoded, record, PERSISTENT)
            return
        self._writable(encoded).put(encoded, record, self._scope.checkpoint, PERSISTENT)

    def _writable(self, key: bytes) -> AnyShard:
        """Return the shard of a key, as soon as this handle may write to it."""
        return self._writers.allowed(self._scope.shard(key))

    def _add(self, key: bytes, record: Record, flags: int) -> None:
        assert self._batch is not None
        self._batch.check(flags)
        self._batch.add(self._scope.place(key), key, record)

    def __delitem__(self, key: K) -> None:
        if self._removed(key, "pop") is MISSING:
            raise self._missing(key)

    @overload
    def pop(self, key: K, /) -> V: ...
    @overload
    def pop(self, key: K, default: V | T) -> V | T: ...
    def pop(self, key: K, default: object = _UNSET) -> object:
        """Remove a key and return its value, or `default` if the key is missing. Raises DDictKeyError without a
        default."""
        found = self._removed(key, "take")
        if found is MISSING:
            if default is _UNSET:
                raise self._missing(key)
            return default
        return self._codec.loaded(found)

    def _removed(self, key: object, method: str) -> object:
        """Return the result of pop() or take() of the shard that holds a key, MISSING if none does. With wait_for_keys
        it waits for the key."""
        encoded = self._codec.key(key)
        shard = self._scope.shard(encoded)

        def remove(shard: AnyShard) -> object:
            return getattr(self._writers.allowed(shard), method)(encoded, self._scope.checkpoint)

        value = remove(shard)
        if value is MISSING and (other := self._scope.elsewhere(shard, encoded)) is not None:
            value = remove(other)
        while value is MISSING and self.wait_for_keys:
            self._scope.wait_for_key(encoded, key)
            value = remove(shard)
        return value

    def _missing(self, key: object) -> DDictKeyError:
        return self._scope.missing(key, self._scope.shard(self._codec.key(key)))

    def _now(self, key: object) -> object:
        """Return the value of a key, or MISSING, without waiting for the key."""
        return self._codec.loaded(self._scope.value(self._codec.key(key)))

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, default: V | T) -> V | T: ...
    def get(self, key: K, default: object = _UNSET) -> object:
        """Return the value of a key, or `default` if the key is missing.

        With wait_for_keys it waits for the key, unless a default is given and no checkpoint of the working set up to
        this one has the key.
        """
        value = self._now(key)
        if value is not MISSING:
            return value
        if self.wait_for_keys and (default is _UNSET or self._begin("has_had", key).result(self.timeout)):
            return self[key]
        return None if default is _UNSET else default

    def put_new(self, key: K, value: V) -> bool:
        """Put a value unless the key exists. Returns whether it was put: of several processes that try, one
        succeeds."""
        encoded, record = self._codec.key(key), self._codec.record(value)
        return self._writable(encoded).put_new(encoded, record, self._scope.checkpoint)

    def setdefault(self, key: K, default: V = None) -> V:  # type: ignore[assignment]
        """Return the value of a key, after putting `default` if the key is missing. All processes get the same
        value."""
        while True:
            value = self._now(key)
            if value is not MISSING:
                return value  # type: ignore[return-value]
            if self.put_new(key, default):
                return default

    def __contains__(self, key: object) -> bool:
        return self._scope.contains(self._codec.key(key))

    def fetch_add(self, key: object, val: int = 1) -> int:
        """Add `val` to an integer and return the value before, which is 0 for a missing key.

        Raises DDictError if the value is not an integer, TypeError if `val` is not.
        """
        val = operator.index(val)
        encoded = self._codec.key(key)
        return int(self._writable(encoded).call("add", encoded, val, self._scope.checkpoint))

    def wait_for(self, key: object, value: object, timeout: float | None = None) -> None:
        """Wait until a key has that value. Raises DDictTimeoutError after `timeout` seconds; None: the handle's
        timeout."""
        self._scope.wait_until(
            self._codec.key(key),
            lambda found: found is not MISSING and equal(self._codec.loaded(found), value),
            f"key {key!r} to be {value!r}",
            self.timeout if timeout is None else timeout,
        )

    # ---- operations on one key whose result is waited for later

    def begin_get(self, key: object) -> Pending[V]:
        """Request a value. result() of the returned object, called in the same thread, waits for it and returns it."""
        pending, encoded = self._begin("value", key), self._codec.key(key)

        def wait(timeout: float | None) -> Any:
            value = pending.result(timeout)
            if value is MISSING and (value := self._scope.value(encoded)) is MISSING:
                raise self._missing(key)
            return self._codec.loaded(value)

        return Pending(wait)

    def _begin(self, method: str, key: object, *arguments: object) -> Pending:
        encoded = self._codec.key(key)
        return self._scope.shard(encoded).begin(method, encoded, self._scope.checkpoint, *arguments)

    def begin_put(self, key: object, value: object) -> Pending[None]:
        """Send a value. result() of the returned object waits until it is stored."""
        return self._begin_put("put", key, value)

    def begin_put_new(self, key: object, value: object) -> Pending[bool]:
        """Send a value unless the key exists. result() of the returned object returns whether it was put."""
        return self._begin_put("put_new", key, value)

    def _begin_put(self, method: str, key: object, value: object) -> Pending:
        encoded, record = self._codec.key(key), self._codec.record(value)
        return self._writable(encoded).begin(method, encoded, record, self._scope.checkpoint)

    # ---- parts of a value

    def get_part(self, key: object, start: int | None = None, stop: int | None = None) -> bytes:
        """Return `self[key][start:stop]` of a bytes value, fetching only that part.

        Raises DDictKeyError, and DDictError if the value is not a bytes object.
        """
        return bytes(self._scope.tell(self._codec.key(key), key, "part", start, stop))

    def bytes_size(self, key: object) -> int:
        """Return the length of a bytes value without fetching it; -1 for any other value. Raises DDictKeyError."""
        return int(self._scope.tell(self._codec.key(key), key, "size"))

    def bytes_sizes(self) -> Iterator[tuple[Any, int]]:
        """Yield all keys with the lengths of their bytes values, -1 for any other value."""
        for sizes in self._scope.on_all("sizes", self._scope.checkpoint):
            for key, size in sizes:
                yield self._codec.decoded(key), size

    @contextmanager
    def view(self, key: object) -> Iterator[memoryview]:
        """Yield the memory of a bytes or array value on this node, read-only and without a copy, to a `with` block.

        A value that is deleted or replaced meanwhile keeps its memory until the block ends. Raises DDictKeyError for a
        missing key, DDictError if its manager is on another node or its value is not a single buffer.
        """
        scope, encoded = self._scope, self._codec.key(key)
        attached = scope.attached  # its shards stay open until the block ends, also after detach() and destroy()
        shard = scope.shard(encoded)
        if scope.is_chosen() and not shard.call("holds", encoded, scope.checkpoint):
            shard = scope.elsewhere(shard, encoded) or shard
        if shard.local is None:
            raise DDictError(f"key {key!r} is in {shard.where}; view() needs one of this node", "INVALID_OPERATION")
        try:
            transaction, stored = shard.local.view(encoded, scope.checkpoint)
        except DDictKeyError:
            raise scope.missing(key, shard) from None
        try:
            if len(stored.blobs) != 1 or len(stored.blobs[0]) != 1:
                raise DDictError(
                    f"the value of {key!r} is not one buffer of 32 KiB to 2 GiB; read it with d[key]",
                    "INVALID_OPERATION",
                )
            memory = memoryview(stored.blobs[0][0]).toreadonly()
            yield memory
            memory.release()
        finally:
            transaction.abort()
            del transaction, attached

    # ---- managers

    def manager(self, id: int) -> Self:
        """Return a handle that reads and writes one manager only. Raises DDictError if there is no such manager."""
        count = self._scope.count
        if not isinstance(id, SupportsIndex) or not 0 <= int(id) < count:
            raise DDictError(f"there is no manager {id!r}; there are 0 to {count - 1}", "INVALID_ARGUMENT")
        scope = self._scope.copied()
        scope.bind(int(id))
        return self._of(scope, self._codec)

    def which_manager(self, key: object) -> int:
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
        usages, states = scope.on_all("usage"), scope.on_all("state")
        return [
            stats_of(shard.settings, usage, shard.call("count", max(scope.checkpoint, state[0])))
            for shard, usage, state in zip(scope.used(), usages, states, strict=True)
        ]

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
        return any(state[2] for state in self._scope.on_all("state"))

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
            writers.persist(self._scope)

    def persisted_ids(self) -> list[int]:
        """Return the checkpoints that can be restored, sorted. Waits for files that are being written."""
        return writers.persisted(self._scope)

    def restore(self, chkpt: int) -> None:
        """Replace the contents by a persisted checkpoint, and move to it. Raises DDictPersistCheckpointError.

        If it was written by a different number of managers, every node reads all files.
        """
        if self._batch is not None:
            raise DDictError("restore() within a batch of puts: end_batch_put() first", "INVALID_OPERATION")
        chkpt = operator.index(chkpt)
        if writers.restore(self._scope, chkpt):
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
