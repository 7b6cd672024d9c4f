"""The distributed dictionary."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar

from dragon.data.ddict import creation, writers
from dragon.data.ddict.creation import (
    CheckpointPersister,
    NULLCheckpointPersister,
    Options,
    check_name,
    check_parameters,
    moment,
)
from dragon.data.ddict.handle import Handle
from dragon.data.ddict.scope import Scope
from dragon.data.ddict.views import DDictItemsView, DDictKeysView, DDictValuesView, FilterContextManager
from dragon.data.ddict.writers import Batch, Writers
from dragon.infrastructure.ddict_errors import DDictError, DDictKeyError, DDictSyncError
from dragon.infrastructure.generic import K, V
from dragon.infrastructure.structs import msgspec
from dragon.infrastructure.variables import parse_size
from dragon.lazy_modules import name_of_package
from dragon.shards.records import encode_value
from dragon.shards.shard import MISSING, PERSISTENT, places_of

if TYPE_CHECKING:
    from _typeshed import SupportsKeysAndGetItem

    from dragon.infrastructure.policy import Policy

__all__ = ["DDict"]

P = ParamSpec("P")
R = TypeVar("R")


class DDict(Handle[K, V], Generic[K, V]):
    """A dictionary in the memory of several nodes, which any process of the run can use at the same time.

    Args:
        managers_per_node, n_nodes: the number of managers on each node, and the number of nodes. Each manager holds a
            shard.
        total_mem: bytes over all managers, or a size such as "64M".
        working_set_size: the number of checkpoints that are kept in memory.
        wait_for_keys: reading a key waits until it is written in this checkpoint; keys of pput() are carried over.
        wait_for_writers: a new checkpoint waits until every writer of the oldest one has moved on.
        policy: the placement of the managers; a list has `managers_per_policy` managers for each entry, and the first
            two arguments are None then.
        timeout: seconds that an operation may take; None: no limit.
        trace: whether this handle logs its operations, as setup_logging() does.
        name: the name under which it is persisted and restored; default: where it is made and ten random letters, as
            train.py-12-uwkbzotdqy.
        restart: continue the dictionary of this name that was destroyed with allow_restart, or its newest checkpoint on
            disk; without either it begins empty, with a RuntimeWarning.
        restore_from: a persisted checkpoint to begin with. With `read_only` nothing can be written.
        persist_freq: a checkpoint whose number is a multiple of it is written to disk when it leaves the working set;
            0: none.
        persist_count: the number of checkpoints on disk that are kept, -1 for all; with 0 none is written.
        persist_path: the folder of the files; default: the current folder.
        persister_class: PosixCheckpointPersister writes files, NULLCheckpointPersister (the default) nothing.
        replicas: the number of nodes that hold each shard. A put returns when all of them have it; if a node is lost,
            no data is lost, and another node takes its place.
        linearizable: with replicas, a read returns every put that had returned before the read began, on whatever node.
            It takes as long as a put. Otherwise this node's replica answers, which may be slightly behind.

    `orc_policy`, `streams_per_manager` and `manager_pool_full_thresh` are accepted for dragonhpc's programs and have no
    effect: there is no orchestrator, and all memory is used. Raises TypeError, ValueError, AttributeError and
    DDictUnableToCreateError for parameters that are invalid or cannot be met.

    Keys that are equal are the same key, as in dict. Operations raise DDictKeyError, DDictFullError, DDictTimeoutError,
    and DestroyedError after destroy().

    Examples:
        >>> from dragon.data.ddict import DDict
        >>> with DDict(managers_per_node=1, n_nodes=1, total_mem=16 * 2**20) as ddict:
        ...     ddict["loss"] = [0.5, 0.25]
        ...     ddict["loss"], "rate" in ddict, len(ddict)
        ([0.5, 0.25], False, 1)
    """

    def __init__(
        self,
        managers_per_node: int | None = 1,
        n_nodes: int | None = 1,
        total_mem: int | str = 3 * 2**20,
        *,
        working_set_size: int = 1,
        wait_for_keys: bool = False,
        wait_for_writers: bool = False,
        policy: Policy | list[Policy] | None = None,
        managers_per_policy: int = 1,
        orc_policy: Policy | None = None,
        persist_freq: int = 0,
        name: str = "",
        timeout: float | None = None,
        trace: bool = False,
        restart: bool = False,
        read_only: bool = False,
        restore_from: int | None = None,
        persist_count: int = 0,
        persist_path: str = "",
        persister_class: type[CheckpointPersister] = NULLCheckpointPersister,
        streams_per_manager: int = 5,
        manager_pool_full_thresh: float = 0.9,
        replicas: int = 1,
        linearizable: bool = False,
    ) -> None:
        if isinstance(total_mem, str):
            total_mem = parse_size(total_mem)
        if isinstance(policy, (list, tuple)) and (managers_per_node, n_nodes) == (1, 1):
            managers_per_node = n_nodes = None
        options = Options(
            name=name,
            working_set_size=working_set_size,
            wait_for_keys=wait_for_keys,
            wait_for_writers=wait_for_writers,
            timeout=timeout,
            read_only=read_only,
            persist_freq=persist_freq,
            persist_count=persist_count,
            persist_path=persist_path,
            persister=getattr(persister_class, "kind", ""),
            replicas=replicas,
            linearizable=linearizable,
            first=restore_from or 0,
        )
        managers = managers_per_node, n_nodes, total_mem, policy, managers_per_policy
        check_parameters(options, *managers, restart, restore_from, persister_class)
        if restart and self._revive(name, timeout, trace):
            return
        nodes = creation.nodes_of(managers_per_node, n_nodes, policy, managers_per_policy)
        folder = str(Path(persist_path or ".").resolve())
        options = msgspec.structs.replace(options, name=name or creation.new_name(), persist_path=folder)
        descriptor, life = creation.create(nodes, total_mem, options)
        self._use(Scope(descriptor, life))
        self._creator = True
        if trace:
            self.setup_logging()
        try:
            if restart:
                restore_from = writers.newest(self._scope)
                if restore_from is None:
                    writers.warn_of_none(name, options.persist_path)
            if restore_from is not None:
                self.restore(restore_from)
                if restart:
                    self._scope.descriptor = creation.beginning_at(descriptor, restore_from)
        except BaseException:
            self.destroy()
            raise

    def _revive(self, name: str, timeout: float | None, trace: bool) -> bool:
        """Continue the dictionary of that name that was destroyed with allow_restart. Returns whether there was one."""
        kept = creation.revive(name, timeout)
        if kept is None:
            return False
        self._use(Scope(*kept))
        self._creator = True
        self._scope.checkpoint = self._checkpoints()[0]
        if trace:
            self.setup_logging()
        return True

    # ---- many keys

    def get_many(self, keys: Iterable[K]) -> list[V]:
        """Return the values of several keys, with few requests. Raises DDictKeyError for the first missing key."""
        codec = self._codec
        wanted = [(key, codec.key(key)) for key in keys]
        found = dict(self._scope.present((self._scope.shard(encoded), encoded) for _, encoded in wanted))
        for key, encoded in wanted:
            if encoded not in found:
                found[encoded] = self._scope.value(encoded)
            if found[encoded] is MISSING:
                raise self._missing(key)
        return [codec.loaded(found[encoded]) for _, encoded in wanted]

    def put_many(self, items: SupportsKeysAndGetItem[K, V] | Iterable[tuple[K, V]]) -> None:
        """Put several values in batches of 64 MiB. Each manager stores all values of a batch or none.

        `items` is a mapping, another object with keys() and indexing, or an iterable of pairs.
        """
        batch = Batch(self._scope, self._writers, 0)
        for key, value in _pairs(items):
            encoded = self._codec.key(key)
            batch.add(self._scope.place(encoded), encoded, self._codec.record(value))
        batch.send()

    def update(self, other: SupportsKeysAndGetItem[K, V] | Iterable[tuple[K, V]] = (), /, **more: V) -> None:
        """Put the keys and values that dict.update() would."""
        self.put_many(other)
        self.put_many(more)  # type: ignore[arg-type]

    def start_batch_put(self, persist: bool = False) -> None:
        """Collect puts until end_batch_put() and send them in batches. Raises DDictError if a batch was started
        already.

        With `persist` the puts are those of pput(), and only those; the wrong kind raises DDictError.
        """
        if self._batch is not None:
            raise DDictError("a batch has been started already", "INVALID_OPERATION")
        self._writers.refuse_if_read_only()
        self._batch = Batch(self._scope, self._writers, PERSISTENT if persist else 0, lasting=True)

    def end_batch_put(self) -> None:
        """Send the rest of the batch and wait until it is stored.

        Raises DDictError without a batch, DDictFutureCheckpointError if its checkpoint cannot be written yet.
        """
        if self._batch is None:
            raise DDictError("no batch was started", "INVALID_OPERATION")
        batch, self._batch = self._batch, None
        batch.send()

    def bput(self, key: K, value: V) -> None:
        """Put a value into every manager, so that bget() finds it on the reader's own node.

        Raises DDictFullError if a manager has no room; then no manager stores it. A started batch does not delay it;
        one of persistent puts refuses it with DDictError.
        """
        if self._batch is not None:
            self._batch.check(0)
        self._writers.broadcast(self._codec.key(key), self._codec.record(value))

    def bget(self, key: K) -> V:
        """Return the value of a broadcast put, from this process's main manager if that has it."""
        scope, encoded = self._scope, self._codec.key(key)
        shard = scope.open()[self.main_manager]
        value = shard.value(encoded, scope.checkpoint)
        if value is MISSING:
            # With one manager a broadcast is an ordinary put, and may have been restored into more.
            value = scope.shard(encoded).value(encoded, scope.checkpoint)
        if value is MISSING:
            raise self._scope.missing(key, shard)
        return self._codec.loaded(value)  # type: ignore[no-any-return]

    # ---- all keys

    def clear(self) -> None:
        """Remove all keys of this checkpoint."""
        for shard in self._scope.used():
            self._writers.allowed(shard)
        self._scope.on_all("clear", self._scope.checkpoint)

    def sync(self, timeout: float | None = None) -> None:
        """Return immediately: every put waits until its value is stored."""
        self._scope.open()

    def __len__(self) -> int:
        return sum(self._scope.on_all("count", self._scope.checkpoint))

    def __iter__(self) -> Iterator[K]:
        return (self._codec.decoded(key) for _, key in self._scope.stored_keys())

    def keys(self) -> DDictKeysView[K]:
        """Return a view of all keys, which reads the dictionary each time it is used."""
        return DDictKeysView(self)

    def values(self) -> DDictValuesView[V]:
        """Return a view of all values."""
        return DDictValuesView(self)

    def items(self) -> DDictItemsView[K, V]:
        """Return a view of all keys with their values."""
        return DDictItemsView(self)

    def popitem(self) -> tuple[K, V]:
        """Remove an arbitrary key and return it with its value. Raises DDictKeyError for an empty dictionary."""
        for shard, key in self._scope.stored_keys():
            value = self._writers.allowed(shard).take(key, self._scope.checkpoint)
            if value is not MISSING:
                return self._codec.decoded(key), self._codec.loaded(value)
        raise DDictKeyError(f"the dictionary {self.get_name()!r} is empty")

    def _local(self) -> list[int]:
        return [shard.settings.manager for shard in self._scope.local()]

    def local_len(self) -> int:
        """Return the number of keys on this node."""
        return len(self.local_keys())

    def local_keys(self) -> DDictKeysView:
        """Return a view of the keys on this node."""
        return DDictKeysView(self, self._local())

    def local_values(self) -> DDictValuesView:
        """Return a view of the values on this node."""
        return DDictValuesView(self, self._local())

    def local_items(self) -> DDictItemsView:
        """Return a view of the keys on this node with their values."""
        return DDictItemsView(self, self._local())

    def filter(
        self,
        mgr_code: Callable[..., Iterable[Any]],
        mgr_code_args: tuple[Any, ...] = (),
        comparator: Callable[[Any, Any], Any] = operator.lt,
        branching_factor: int = 5,
    ) -> FilterContextManager:
        """Return a context manager that runs `mgr_code` beside each manager and gives an iterator over the chosen
        items, merged.

        `mgr_code(ddict, queue, *mgr_code_args)` puts items into the queue, or `mgr_code(ddict, *mgr_code_args)` yields
        them; it is called with a handle of its manager. `comparator(a, b)` returns whether `a` comes before `b`: each
        call must produce its items in that order, and the results are merged by it. `branching_factor` has no effect:
        the calling process merges.
        """
        for name, given in (("mgr_code", mgr_code), ("comparator", comparator)):
            if not callable(given):
                raise TypeError(f"{name} must be a function, not {given!r}")
        return FilterContextManager(self, mgr_code, tuple(mgr_code_args), comparator)

    def memoize(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function so that its results are kept in the dictionary, by its name and arguments, for all
        processes.

        If two processes miss the same result at the same time, both compute it. Raises TypeError for a function without
        a name of its own, such as a lambda.
        """
        if not callable(function) or getattr(function, "__name__", "<lambda>") == "<lambda>":
            raise TypeError(f"memoize() keeps results by the name of a function, and {function!r} has none: use def")
        name = f"{function.__module__}.{function.__qualname__}"

        @functools.wraps(function)
        def remembered(*args: P.args, **kwargs: P.kwargs) -> R:
            key = ("memoize", name, args, tuple(sorted(kwargs.items())))
            found = self._now(key)
            if found is MISSING:
                found = function(*args, **kwargs)
                self[key] = found  # type: ignore[index,assignment]
            return found  # type: ignore[return-value]

        return remembered

    # ---- copies

    def copy(self, name: str = "") -> Self:
        """Return a new dictionary with managers on the same nodes and all contents; its handle begins in the oldest
        checkpoint.

        The copy of a read-only dictionary can be written. Raises DDictError unless this handle created the dictionary.
        """
        scope = self._scope
        if not self._creator:
            raise DDictError(
                f"only the handle that made the dictionary {self.get_name()!r} can copy it; make one of the same "
                "size and clone() this one into it",
                "INVALID_ARGUMENT",
            )
        check_name(name, scope.options.persister != NULLCheckpointPersister.kind)
        nodes = [settings.node for settings in scope.descriptor.shards]
        first, _ = self._checkpoints()
        options = msgspec.structs.replace(
            scope.options, name=name or creation.new_name(), read_only=False, first=first, empty=[]
        )
        total_mem = sum(settings.capacity for settings in scope.descriptor.shards)
        copied = self._of(Scope(*creation.create(nodes, total_mem, options)))
        copied._creator = True
        copied._scope.checkpoint = first
        self._copy_to(copied)
        return copied

    def clone(self, clone_list: Iterable[str]) -> None:
        """Replace the contents of the dictionaries that these texts of serialize() name by the contents of this one.

        A dictionary with equal numbers of managers and checkpoints gets all checkpoints, and each key stays with the
        same manager. Any other one gets this handle's checkpoint as its first checkpoint, with each key placed as by
        restore().
        """
        for text in clone_list:
            self._copy_to(type(self).attach(text))

    def _copy_to(self, other: DDict, managers: Iterable[int] | None = None) -> None:
        chosen = self._scope.is_chosen(ask=True)
        if _same_shape(self._scope, other._scope):
            since = moment(other._scope.options)
            for manager in range(self._scope.count) if managers is None else managers:
                _copy_shard(self._scope, manager, other._scope, since)
        else:
            _copy_all(self._scope, other._scope, other._writers)
        if chosen:
            other._writers.note_chosen()

    @classmethod
    def synchronize_ddicts(cls, serialized_ddicts: Iterable[str]) -> None:
        """Fill managers that are empty in some of these dictionaries from one in which they are not.

        Raises DDictSyncError if the dictionaries have different numbers of managers, or different working sets.
        """
        ddicts = [cls.attach(text) for text in serialized_ddicts]
        if any(not _same_shape(ddicts[0]._scope, ddict._scope) for ddict in ddicts[1:]):
            raise DDictSyncError("the dictionaries have different numbers of managers, or different working sets")
        for manager in range(ddicts[0]._scope.count if ddicts else 0):
            records = [ddict._scope.open()[manager].call("usage")["records"] for ddict in ddicts]
            source = next((ddict for ddict, count in zip(ddicts, records, strict=True) if count), None)
            for ddict, count in zip(ddicts, records, strict=True):
                if source is not None and not count:
                    source._copy_to(ddict, [manager])


def _same_shape(one: Scope, other: Scope) -> bool:
    """Return whether two dictionaries have equal numbers of managers and checkpoints, so keys are placed equally."""
    return (one.count, one.options.working_set_size) == (other.count, other.options.working_set_size)


def _copy_all(scope: Scope, other: Scope, writers: Writers) -> None:
    """Replace the contents of `other`, of another shape, whose `writers` these are, by this one's checkpoint."""
    other.on_all("begin_anew", other.checkpoint, moment(other.options))
    for shard in scope.used():
        by_flags: dict[int, list[bytes]] = {}
        for key, flags, _ in shard.call("flagged_keys", scope.checkpoint):
            by_flags.setdefault(flags, []).append(key)
        for flags, keys in by_flags.items():
            batch = Batch(other, writers, flags)
            for key, value in scope.present((shard, key) for key in keys):
                record = encode_value(value)
                for place in places_of(key, flags, shard.settings.manager, scope.count, other.count):
                    batch.add(place, key, record)
            batch.send()


def _copy_shard(scope: Scope, manager: int, other: Scope, since: int) -> None:
    """Replace a manager of `other`, of the same shape, by all checkpoints of the same one. Broadcasts stay such."""
    reader, writer = scope.copied(), other.copied()
    shard, copy = reader.open()[manager], writer.open()[manager]
    writers = Writers(writer)
    writers.guarded = False
    oldest, newest, *_ = shard.call("state")
    copy.call("begin_anew", oldest, since)
    before: set[bytes] = set()
    for checkpoint in range(oldest, newest + 1):
        by_flags: dict[int, list[bytes]] = {}
        seen = set()
        for key, flags, put_in in shard.call("flagged_keys", checkpoint):
            seen.add(key)
            if checkpoint in (put_in, oldest):
                by_flags.setdefault(flags, []).append(key)
        copy.call("advance", checkpoint)
        reader.checkpoint = writer.checkpoint = checkpoint
        for flags, keys in by_flags.items():
            batch = Batch(writer, writers, flags)
            for key, value in reader.present((shard, key) for key in keys):
                batch.add(manager, key, encode_value(value))
            batch.send()
        for key in before - seen:
            copy.pop(key, checkpoint)
        before = seen


def _pairs(items: SupportsKeysAndGetItem[Any, Any] | Iterable[tuple[Any, Any]]) -> Iterable[tuple[Any, Any]]:
    if isinstance(items, Mapping):
        return items.items()
    if isinstance(items, Iterable) and not hasattr(items, "keys"):
        return items
    keys = items.keys()  # type: ignore[union-attr]
    return ((key, items[key]) for key in keys)  # type: ignore[index]


def __getattr__(name: str) -> Any:
    return name_of_package("dragon.data.ddict", __name__, name)  # programs import the package's other names from here
