"""The distributed dictionary."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from dragon.data.ddict import creation
from dragon.data.ddict.checks import (
    check_kinds,
    check_name,
    check_numbers,
    check_placement,
    check_restoring,
    check_timeout,
)
from dragon.data.ddict.copies import Copies
from dragon.data.ddict.creation import Options
from dragon.data.ddict.filtering import FilterContextManager
from dragon.data.ddict.persistence import (
    CheckpointPersister,
    NULLCheckpointPersister,
    check_persister,
    warn_of_no_checkpoint,
)
from dragon.data.ddict.shards import AnyShard
from dragon.data.ddict.views import DDictItemsView, DDictKeysView, DDictValuesView, equal
from dragon.infrastructure.ddict_errors import DDictError, DDictKeyError
from dragon.infrastructure.lazy_modules import name_of_package
from dragon.runtime.nodes import run_nodes
from dragon.shards.entries import PERSISTENT
from dragon.shards.records import encode_key, encode_value
from dragon.shards.shard import MISSING

if TYPE_CHECKING:
    from dragon.infrastructure.policy import Policy

__all__ = ["DDict"]

P = ParamSpec("P")
R = TypeVar("R")

_UNSET: Any = object()


class DDict(Copies):
    """A dictionary in the memory of several nodes, which any process of the run can use at the same time.

    Args:
        managers_per_node, n_nodes: shards on a node, and on how many nodes; as many managers as the product.
        total_mem: bytes over all managers.
        working_set_size: checkpoints that are held.
        wait_for_keys: reading a key waits until it is written in this checkpoint; keys of pput() are carried on.
        wait_for_writers: a new checkpoint waits until every writer of the oldest one has gone on.
        policy: where the managers go; a list has `managers_per_policy` managers for each entry, and the first two
            arguments are None then.
        timeout: seconds that an operation may take, for ever by default.
        trace: whether this handle logs what it does, as setup_logging() has it.
        name: by which it is persisted and restored; ten letters by default.
        restore_from: a persisted checkpoint to begin with; with `read_only` nothing is written.
        persist_freq: checkpoints whose number it divides are written to disk when they leave the working set.
        persist_count: files that are kept, -1 for all; with 0 none is written.
        persist_path: the folder, the current one by default.
        persister_class: PosixCheckpointPersister writes files, NULLCheckpointPersister (the default) nothing.
        replicas: nodes that keep each shard. A put is done when all of them have it; a lost node loses nothing, and
            another one takes its place.
        linearizable: with replicas, a read shows every put that had returned before it was begun, on whatever node. It
            takes as long as a put does; else it is answered by this node's copy, which may be a moment behind.

    `orc_policy`, `streams_per_manager` and `manager_pool_full_thresh` are taken as they are given and change
    nothing: nobody orchestrates, and memory is used to its end. Raises TypeError, ValueError, AttributeError and
    DDictUnableToCreateError as its parameters ask for it.

    Keys that are equal are the same key, as in dict. Operations raise DDictKeyError, DDictFullError,
    DDictTimeoutError, and DestroyedError after destroy().
    """

    def __init__(
        self,
        managers_per_node: int | None = 1,
        n_nodes: int | None = 1,
        total_mem: int = 3 * 2**20,
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
        if isinstance(policy, (list, tuple)) and (managers_per_node, n_nodes) == (1, 1):
            managers_per_node = n_nodes = None
        check_kinds(int, working_set_size=working_set_size, managers_per_policy=managers_per_policy, replicas=replicas)
        check_kinds(int, persist_freq=persist_freq, persist_count=persist_count)
        if restore_from is not None:
            check_kinds(int, restore_from=restore_from)
        check_name(name, persister_class is not NULLCheckpointPersister)
        if not isinstance(persist_path, Path):
            check_kinds(str, persist_path=persist_path)
        check_kinds(bool, wait_for_keys=wait_for_keys, wait_for_writers=wait_for_writers)
        check_kinds(bool, restart=restart, read_only=read_only, linearizable=linearizable)
        check_timeout(timeout)
        check_numbers(total_mem, working_set_size, wait_for_keys or wait_for_writers, persist_freq, persist_count)
        check_placement(policy, managers_per_node, n_nodes)
        check_persister(persister_class, persist_freq)
        if not 1 <= replicas <= len(run_nodes()):
            raise ValueError(f"replicas must be from 1 to the run's {len(run_nodes())} nodes, not {replicas}")
        check_restoring(name, restart, read_only, restore_from, policy)
        if read_only and (working_set_size != 1 or wait_for_keys or wait_for_writers or persist_count):
            raise AttributeError("read_only goes with a working set of 1, no waits and no persist_count")
        if restart and self._revive(name, timeout, trace):
            return
        nodes = creation.nodes_of(managers_per_node, n_nodes, policy, managers_per_policy)
        options = Options(
            name=name or creation.new_name(),
            working_set_size=working_set_size,
            wait_for_keys=wait_for_keys,
            wait_for_writers=wait_for_writers,
            timeout=timeout,
            read_only=read_only,
            persist_freq=persist_freq,
            persist_count=persist_count,
            persist_path=str(Path(persist_path or ".").resolve()),
            persister=persister_class.kind,
            replicas=replicas,
            linearizable=linearizable,
            first=restore_from or 0,
        )
        descriptor, life = creation.create(nodes, total_mem, options)
        self._open(descriptor, life)
        self._creator = True
        if trace:
            self.setup_logging()
        try:
            if restart:
                restore_from = max(self.persisted_ids(), default=restore_from)
                if restore_from is None:
                    warn_of_no_checkpoint(name, options.persist_path)
            if restore_from is not None:
                self.restore(restore_from)
                if restart:
                    self._descriptor = creation.beginning_at(self._descriptor, restore_from)
        except BaseException:
            self.destroy()
            raise

    def _revive(self, name: str, timeout: float | None, trace: bool) -> bool:
        """Go on with the dictionary of that name that was destroyed to be restarted; whether there is one."""
        kept = creation.revive(name, timeout)
        if kept is None:
            return False
        self._open(*kept)
        self._creator = True
        self._checkpoint = self._oldest()
        if trace:
            self.setup_logging()
        return True

    # ---- one key

    def __getitem__(self, key: Any) -> Any:
        encoded = encode_key(key) if self._picklers[0] is None else self._key(key)
        shard = self._one or self._shard(encoded)
        value = shard.value(encoded, self._checkpoint)
        if value is MISSING:
            if self._exact:
                return self._loaded(self._await(shard, encoded, key))
            other = self._elsewhere(shard, encoded)
            value = MISSING if other is None else other.value(encoded, self._checkpoint)
            if value is MISSING:
                raise self._missing(key, shard)
        return value if self._picklers[1] is None else self._picklers[1].loads(value)

    def __setitem__(self, key: Any, value: Any) -> None:
        encoded = encode_key(key) if self._picklers[0] is None else self._key(key)
        record = encode_value(value) if self._picklers[1] is None else encode_value(self._picklers[1].dumps(value))
        if self._batch is not None:
            self._add_to_batch(encoded, record)
            return
        shard = self._one or self._shard(encoded)
        if self._guarded:
            self._may_write(shard)
        shard.put(encoded, record, self._checkpoint)

    def pput(self, key: Any, value: Any) -> None:
        """Put a value that later checkpoints show too."""
        if self._batch is not None and not self._batch_flags:
            raise DDictError(
                "this batch is not one of persistent puts: start_batch_put(persist=True)", "INVALID_OPERATION"
            )
        encoded, record = self._key(key), self._record(value)
        if self._batch is not None:
            self._add_to_batch(encoded, record)
            return
        shard = self._shard(encoded)
        self._write(shard, lambda: shard.put(encoded, record, self._checkpoint, PERSISTENT))

    def __delitem__(self, key: Any) -> None:
        if self._removed(key, lambda shard, encoded: shard.pop(encoded, self._checkpoint)) is MISSING:
            raise self._missing(key, self._shard(self._key(key)))

    def pop(self, key: Any, default: Any = _UNSET) -> Any:
        """Remove a key; its value, or `default` where it is given. Raises DDictKeyError where there is neither."""
        value = self._loaded(self._removed(key, lambda shard, encoded: shard.take(encoded, self._checkpoint)))
        if value is MISSING:
            if default is _UNSET:
                raise self._missing(key, self._shard(self._key(key)))
            return default
        return value

    def _removed(self, key: Any, remove: Callable[[AnyShard, bytes], Any]) -> Any:
        """What `remove` makes of a key and the shard that holds it; MISSING where none does. Where keys are waited for,
        this one is."""
        encoded = self._key(key)
        shard = self._shard(encoded)
        value = self._write(shard, lambda: remove(shard, encoded))
        if value is MISSING and (other := self._elsewhere(shard, encoded)) is not None:
            value = self._write(other, lambda: remove(other, encoded))
        while value is MISSING and self._exact:
            self._await(shard, encoded, key)
            value = self._write(shard, lambda: remove(shard, encoded))
        return value

    def get(self, key: Any, default: Any = _UNSET) -> Any:
        """The value of a key, or `default` where the dictionary does not have the key. With wait_for_keys it is waited
        for, unless a default is given and no checkpoint of the working set up to this one has it."""
        value = self._now(key)
        if value is not MISSING:
            return value
        if self._exact and (default is _UNSET or self._has_had(key)):
            return self[key]
        return None if default is _UNSET else default

    def _has_had(self, key: Any) -> bool:
        encoded = self._key(key)
        return bool(self._shard(encoded).begin("has_had", encoded, self._checkpoint).result(self._timeout))

    def put_new(self, key: Any, value: Any) -> bool:
        """Put a value unless the key is there; whether it was put. Of several processes that try, one does."""
        return bool(self.begin_put_new(key, value).result(self._timeout))

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """The value of a key, which is `default` from now on where there was none; for all processes the same one."""
        while True:
            value = self._now(key)
            if value is not MISSING:
                return value
            if self.put_new(key, default):
                return default

    def __contains__(self, key: Any) -> bool:
        encoded = self._key(key)
        shard = self._shard(encoded)
        return shard.contains(encoded, self._checkpoint) or self._elsewhere(shard, encoded) is not None

    def fetch_add(self, key: Any, val: int = 1) -> int:
        """Add to an integer; the value before, 0 at first. Raises DDictError where it is something else, and TypeError
        where `val` is no integer."""
        val = operator.index(val)
        encoded = self._key(key)
        shard = self._shard(encoded)
        return int(self._write(shard, lambda: shard.add(encoded, val, self._checkpoint)))

    def wait_for(self, key: Any, value: Any, timeout: float | None = None) -> None:
        """Wait until a key has that value. Raises DDictTimeoutError."""
        encoded = self._key(key)
        shard = self._shard(encoded)
        self._until(
            shard,
            lambda: self._loaded(self._value(shard, encoded)),
            lambda found: found is not MISSING and equal(found, value),
            self._timeout if timeout is None else timeout,
            f"key {key!r} to be {value!r}",
        )

    # ---- all keys

    def update(self, other: Any = (), /, **more: Any) -> None:
        """Put what dict.update() would."""
        self.put_many(other)
        self.put_many(more)

    def clear(self) -> None:
        """Remove all keys of this checkpoint."""
        if self._guarded:
            for shard in self._all():
                self._may_write(shard)
        self._on_all("clear", self._checkpoint)

    def sync(self, timeout: float | None = None) -> None:
        """Wait until what was put is stored; here every put does so itself."""
        self._open_shards()

    # ---- all keys

    def __len__(self) -> int:
        return sum(self._on_all("count", self._checkpoint))

    def __iter__(self) -> Iterator[Any]:
        return (self._decoded(key) for _, key in self._encoded_keys())

    def keys(self) -> DDictKeysView:
        """All keys, as they are when they are looked at."""
        return DDictKeysView(self)

    def values(self) -> DDictValuesView:
        """All values."""
        return DDictValuesView(self)

    def items(self) -> DDictItemsView:
        """All keys with their values."""
        return DDictItemsView(self)

    def popitem(self) -> tuple[Any, Any]:
        """Remove some key, and return it with its value. Raises DDictKeyError where there is none."""
        for shard, key in self._encoded_keys():
            value = self._write(shard, functools.partial(shard.take, key, self._checkpoint))
            if value is not MISSING:
                return self._decoded(key), self._loaded(value)
        raise DDictKeyError(f"the dictionary {self._options.name!r} is empty")

    def __eq__(self, other: object) -> bool:
        """Whether both are handles of one dictionary; compare contents with dict(d)."""
        return isinstance(other, DDict) and other._descriptor.number == self._descriptor.number

    def __hash__(self) -> int:
        return hash(self._descriptor.number)

    def local_len(self) -> int:
        """Keys on this node."""
        return len(self.local_keys())

    def local_keys(self) -> DDictKeysView:
        """Keys on this node."""
        return DDictKeysView(self, self._local_managers())

    def local_values(self) -> DDictValuesView:
        """Values on this node."""
        return DDictValuesView(self, self._local_managers())

    def local_items(self) -> DDictItemsView:
        """Keys on this node with their values."""
        return DDictItemsView(self, self._local_managers())

    def filter(
        self,
        mgr_code: Callable[..., Iterable[Any]],
        mgr_code_args: tuple[Any, ...] = (),
        comparator: Callable[[Any, Any], Any] = operator.lt,
        branching_factor: int = 5,
    ) -> FilterContextManager:
        """Within the block, an iterator over what `mgr_code(ddict, queue, *mgr_code_args)` puts into the queue beside
        each manager, or what `mgr_code(ddict, *mgr_code_args)` yields there.

        It is called with a handle of that manager; what all put or yield is merged by `comparator(a, b)`, which says
        whether `a` comes before `b`, and by which each must put in order. `branching_factor` changes nothing: items
        are merged here.
        """
        for name, given in (("mgr_code", mgr_code), ("comparator", comparator)):
            if not callable(given):
                raise TypeError(f"{name} must be a function, not {given!r}")
        return FilterContextManager(self, mgr_code, tuple(mgr_code_args), comparator)

    def memoize(self, function: Callable[P, R]) -> Callable[P, R]:
        """A decorator: results of a function are kept in the dictionary, by its name and arguments, for all processes.

        Of two that miss at the same time both compute. Raises TypeError for what has no name of its own, as a lambda.
        """
        if not callable(function) or getattr(function, "__name__", "<lambda>") == "<lambda>":
            raise TypeError(f"memoize() keeps results by the name of a function, and {function!r} has none: use def")
        name = f"{function.__module__}.{function.__qualname__}"

        @functools.wraps(function)
        def remembered(*args: P.args, **kwargs: P.kwargs) -> R:
            key = ("memoize", name, args, tuple(sorted(kwargs.items())))
            found = self._now(key)
            if found is MISSING:
                found = self[key] = function(*args, **kwargs)
            result: R = found
            return result

        return remembered


def __getattr__(name: str) -> Any:
    return name_of_package("dragon.data.ddict", __name__, name)  # programs import all of the package's from here
