"""A handle of a distributed dictionary: how it is sent, attached and dropped, and the managers behind it."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, SupportsIndex, cast

from dragon import _core
from dragon.data.ddict import creation
from dragon.data.ddict.checks import check_timeout
from dragon.data.ddict.creation import Descriptor
from dragon.data.ddict.profile import DDictOperationProfile, Observed, Observer
from dragon.data.ddict.replicated import ReplicatedShard
from dragon.data.ddict.shards import AnyShard, LocalShard, open_shard
from dragon.data.ddict.stats import DDictManagerStats, stats_of
from dragon.infrastructure.ddict_errors import DDictError
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.plain_number import plain_number
from dragon.runtime.handle import Event
from dragon.runtime.log import runtime_log
from dragon.runtime.nodes import node_at
from dragon.runtime.picklers import pickler_of
from dragon.shards.entries import Settings
from dragon.shards.records import FOREIGN, Record, decode_key, encode_key, encode_value, place_of
from dragon.shards.shard import MISSING

if TYPE_CHECKING:
    from dragon.native.machine import Node

__all__ = ["Client", "life_of"]


class _Attached:
    """The shards of a dictionary as this process has them open; all its handles of it share them."""

    _all: ClassVar[weakref.WeakValueDictionary[str, _Attached]] = weakref.WeakValueDictionary()
    _lock = threading.Lock()

    def __init__(self, descriptor: Descriptor) -> None:
        self.descriptor = descriptor
        self.chosen = False  # whether keys are known to lie with other managers than their hashes say
        self.shards: list[AnyShard] = [_open(descriptor.number, settings) for settings in descriptor.shards]

    @classmethod
    def to(cls, descriptor: Descriptor) -> _Attached:
        with cls._lock:
            found = cls._all.get(descriptor.number)
            if found is None:
                cls._close_gone(descriptor.options.name)
                found = cls._all[descriptor.number] = cls(descriptor)
            return found

    @classmethod
    def _close_gone(cls, name: str) -> None:
        """Close what is open of dictionaries of that name that are gone: one that is restarted lies in their files."""
        for other in list(cls._all.values()):
            if other.descriptor.options.name == name:
                for shard in other.shards:
                    if shard.local is not None and shard.local.is_gone:
                        shard.close()

    def __del__(self) -> None:
        for shard in getattr(self, "shards", ()):
            shard.close()


def _open(number: str, settings: Settings) -> AnyShard:
    return ReplicatedShard(number, settings) if settings.holders else open_shard(number, settings)


class Client(MutableMapping[Any, Any]):
    """One process's handle. Not for several threads at a time."""

    _creator = False

    def _open(self, descriptor: Descriptor, life: Event | None) -> None:
        self._descriptor = descriptor
        self._options = descriptor.options
        self._life = life
        self._attached: _Attached | None = _Attached.to(descriptor)
        self._bound: int | None = None
        self._limit(self._options.timeout)
        self._checkpoint = 0
        self._exact = self._options.wait_for_keys
        self._batch: list[list[tuple[bytes, Record]]] | None = None
        self._batch_size = 0
        self._batch_flags = 0
        self._picklers: tuple[Any, Any] = (None, None)
        self._noted: set[int] = set()  # managers that know in which checkpoint this handle writes
        self._persists = bool(self._options.persist_freq and self._options.persist_count)
        self._begun = 0  # the checkpoint to which this handle has had all managers go on
        self._guarded = self._is_guarded()
        self._observer: Observer | None = None

    def _is_guarded(self) -> bool:
        """Whether something is to be seen to before each write. Of what a chosen manager is given others are told."""
        assert self._attached is not None
        if self._bound is not None and self._count > 1 and not self._attached.chosen:
            return True
        return self._options.read_only or self._options.wait_for_writers or self._persists

    def _limit(self, timeout: float | None) -> None:
        """Let operations take so many seconds."""
        assert self._attached is not None
        shards = self._attached.shards
        self._timeout = timeout
        self._shards = shards if timeout is None else [shard.within(timeout) for shard in shards]
        self._count = len(shards)
        self._one = self._shards[0] if self._count == 1 else None

    def _bind(self, manager: int) -> None:
        """Use one manager only."""
        self._bound = manager
        self._one = self._shards[manager]
        self._guarded = self._is_guarded()

    # ---- handles

    def __reduce__(self) -> Any:
        self._open_shards()
        state = (self._checkpoint, self._timeout, self._bound, self._picklers)
        return _restored, (type(self), self._descriptor, self._life, state)

    def serialize(self) -> str:
        """Text from which any process of the run can attach()."""
        self._open_shards()
        return creation.to_text(self._descriptor)

    @classmethod
    def attach(cls, serialized: str, *, timeout: float | None = None, trace: bool = False) -> Self:
        """A handle of a dictionary that exists; with `trace` it logs what it does. Raises DDictError for other text,
        DestroyedError where the dictionary is gone."""
        check_timeout(timeout)
        descriptor = creation.from_text(serialized)
        found = cls.__new__(cls)
        found._open(descriptor, life_of(descriptor))
        if timeout is not None:
            found._limit(plain_number(timeout))
        found._checkpoint = descriptor.options.first
        found._shards[0].state()  # raises where it is gone
        if trace:
            found.setup_logging()
        return found

    def detach(self) -> None:
        """Drop this handle; others go on."""
        self._attached = self._life = self._one = None
        self._shards = []

    def destroy(self, allow_restart: bool = False) -> None:
        """Remove the dictionary from the memory of all nodes, once checkpoints that are due are in their files. Every
        other use raises from now on; again is fine. With `allow_restart` what it holds stays until the run ends, or
        until DDict(name=..., restart=True) goes on with it."""
        if self._attached is None:
            return
        creation.destroy(self._descriptor, allow_restart)
        self._attached = self._life = self._one = None
        self._shards = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.destroy() if self._creator else self.detach()

    def __repr__(self) -> str:
        return f"<DDict {self._options.name!r}: {self._count} manager{'s' * (self._count > 1)}>"

    def get_name(self) -> str:
        """By which it is persisted, and listed by `dragon ddict ls`."""
        return self._options.name

    @property
    def timeout(self) -> float | None:
        """Seconds that an operation may take; None: for ever."""
        return self._timeout

    @property
    def wait_for_keys(self) -> bool:
        """Whether reading a key waits until it is written in this checkpoint."""
        return self._options.wait_for_keys

    def _open_shards(self) -> list[AnyShard]:
        if self._attached is None:
            raise _core.DestroyedError(f"the dictionary {self._options.name!r} was destroyed or detached here")
        return self._shards

    # ---- shards

    def _key(self, key: Any) -> bytes:
        return encode_key(key) if self._picklers[0] is None else FOREIGN + bytes(self._picklers[0].dumps(key))

    def _decoded(self, key: bytes) -> Any:
        foreign = self._picklers[0] is not None and key.startswith(FOREIGN)
        return self._picklers[0].loads(key[len(FOREIGN) :]) if foreign else decode_key(key)

    def _record(self, value: Any) -> Record:
        return encode_value(value if self._picklers[1] is None else self._picklers[1].dumps(value))

    def _loaded(self, value: Any) -> Any:
        """What was read, which may be MISSING."""
        return value if self._picklers[1] is None or value is MISSING else self._picklers[1].loads(value)

    def _shard(self, encoded: bytes) -> AnyShard:
        one = self._one
        if one is not None:
            return one
        return self._open_shards()[self._place(encoded)]

    def _place(self, encoded: bytes) -> int:
        return place_of(encoded, self._count) if self._bound is None else self._bound

    def _on_all(self, method: str, *arguments: Any) -> list[Any]:
        pending = [shard.begin(method, *arguments) for shard in self._all()]
        return [one.result(self._timeout) for one in pending]

    def _all(self) -> list[AnyShard]:
        shards = self._open_shards()
        return shards if self._bound is None else [shards[self._bound]]

    def _local(self) -> list[LocalShard]:
        return [shard.local for shard in self._all() if shard.local is not None]

    def _local_managers(self) -> list[int]:
        return [shard.settings.manager for shard in self._local()]

    # ---- managers

    def manager(self, manager_id: int) -> Self:
        """A handle that puts and gets on one manager only. Raises DDictError where there is no such manager."""
        if not isinstance(manager_id, SupportsIndex) or not 0 <= int(manager_id) < self._count:
            raise DDictError(
                f"there is no manager {manager_id!r}, there are 0 to {self._count - 1}", "INVALID_ARGUMENT"
            )
        bound = self._again()
        bound._bind(int(manager_id))
        return bound

    def _again(self) -> Self:
        self._open_shards()
        copied = type(self).__new__(type(self))
        copied._open(self._descriptor, self._life)
        copied._checkpoint, copied._timeout, copied._picklers = self._checkpoint, self._timeout, self._picklers
        copied._shards, copied._observer, copied._one = self._shards, self._observer, self._one
        if self._bound is not None:
            copied._bind(self._bound)
        return copied

    @contextmanager
    def pickler(self, key_pickler: Any = None, value_pickler: Any = None) -> Iterator[Self]:
        """A handle that turns keys and values into bytes and back with these instead.

        They have `dumps(object) -> bytes` and `loads(bytes)`, or `dump(object, file)` and `load(file)`; TypeError for
        others.
        """
        changed = self._again()
        changed._picklers = pickler_of(key_pickler), pickler_of(value_pickler)
        yield changed

    def which_manager(self, key: Any) -> int:
        """The manager that holds a key."""
        return self._place(self._key(key))

    @property
    def local_managers(self) -> list[int]:
        """The managers of this node."""
        return [shard.settings.manager for shard in self._open_shards() if shard.local is not None]

    @property
    def local_manager(self) -> int | None:
        """The first manager of this node, None where there is none."""
        return next(iter(self.local_managers), None)

    @property
    def main_manager(self) -> int:
        """The manager of this node, or the first where it has none."""
        return self.local_manager or 0

    @property
    def manager_nodes(self) -> list[Node]:
        """The node of each manager."""
        from dragon.native.machine import Node

        return [Node(node_at(settings.node).host_name) for settings in self._descriptor.shards]

    @property
    def empty_managers(self) -> list[int]:
        """Managers that hold nothing after a restart, because their nodes are gone."""
        self._open_shards()
        return list(self._options.empty)

    @property
    def stats(self) -> list[DDictManagerStats]:
        """Of every manager: its memory and its keys."""
        usages = self._on_all("usage")
        oldest = [state[0] for state in self._on_all("state")]
        counts = [
            shard.begin("count", max(self._checkpoint, first)).result(self._timeout)
            for shard, first in zip(self._all(), oldest, strict=True)
        ]
        settings = [shard.settings for shard in self._all()]
        return [stats_of(*one) for one in zip(settings, usages, counts, strict=True)]

    @property
    def dstats(self) -> dict[int, DDictManagerStats]:
        """The same by manager."""
        return {one.manager_id: one for one in self.stats}

    def profile(self) -> dict[str, DDictOperationProfile]:
        """What this handle has done since profile_reset(), by operation: how often, with how many bytes, for how long.

        The first call of either begins it, for this handle and those made from it by manager() and pickler().
        """
        return self._observed().profile()

    def profile_reset(self) -> None:
        """Count from zero again."""
        self._observed().reset()

    def setup_logging(self, level: int = logging.DEBUG) -> None:
        """Log from now on what this handle does, each operation at level DEBUG of the log `dragon.ddict`, which is set
        to `level`."""
        log = runtime_log("ddict")
        log.setLevel(level)
        self._observed().log = log

    def _observed(self) -> Observer:
        if self._observer is None:
            observer = self._observer = Observer()
            self._shards = [cast("AnyShard", Observed(shard, observer)) for shard in self._open_shards()]
            if self._one is not None:
                self._one = self._shards[self._bound or 0]
        return self._observer

    def freeze(self) -> None:
        """Refuse every change from now on, in all processes."""
        self._on_all("freeze", True)

    def unfreeze(self) -> None:
        """Allow changes again."""
        self._on_all("freeze", False)

    @property
    def is_frozen(self) -> bool:
        """Whether changes are refused."""
        return any(shard.state()[2] for shard in self._all())


def _restored(cls: type[Client], descriptor: Descriptor, life: Event | None, state: tuple[Any, ...]) -> Client:
    handle = cls.__new__(cls)
    handle._open(descriptor, life)
    handle._checkpoint, timeout, bound, handle._picklers = state
    handle._limit(timeout)
    if bound is not None:
        handle._bind(bound)
    return handle


def life_of(descriptor: Descriptor) -> Event | None:
    """What keeps a dictionary while a process is attached. Raises DestroyedError where the dictionary is gone."""
    try:
        return Event._attached(descriptor.life)
    except NodeLostError:
        return None  # the node where the dictionary was made is gone; what the others hold lives as long as the run
