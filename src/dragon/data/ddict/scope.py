"""The state of a handle: a dictionary, all its managers or one of them, a checkpoint and a timeout."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar, Self, cast

from dragon import _core
from dragon.data.ddict.creation import Descriptor
from dragon.data.ddict.profile import Observed, Observer
from dragon.data.ddict.replicated import ReplicatedShard
from dragon.data.ddict.shards import AnyShard, LocalShard, open_shard
from dragon.runtime.fork_hooks import ProcessLock
from dragon.runtime.handle import Event
from dragon.shards.entries import Settings
from dragon.shards.records import place_of

__all__ = ["Scope"]


class _Attached:
    """The open shards of a dictionary in this process, which all its handles share."""

    _all: ClassVar[weakref.WeakValueDictionary[str, _Attached]] = weakref.WeakValueDictionary()
    _lock = ProcessLock()

    def __init__(self, descriptor: Descriptor) -> None:
        self.descriptor = descriptor
        self.chosen = False  # whether keys are known to be with other managers than their hashes say
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
        """Close the shards of destroyed dictionaries of that name: a restarted dictionary uses the same files."""
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


class Scope:
    """The managers of a dictionary as one handle uses them. Must not be used by several threads at the same time.

    Args:
        descriptor: of the dictionary.
        life: an object that exists while a process is attached; None if its node is lost.

    Attributes:
        attached: the shards that this process has open; None once the handle is dropped.
        shards: the same shards with the timeout, by manager; empty once the handle is dropped.
        count: the number of managers of the dictionary.
        bound: the only manager that the handle uses; None for all.
        one: the shard of that manager, or the only shard of a dictionary with one manager; None if a key's hash
            decides.
        checkpoint: the checkpoint in which the handle reads and writes.
        timeout: seconds that an operation may take; None: no limit.
        observer: measures and logs the operations of the handle; None if that was not requested.
    """

    def __init__(self, descriptor: Descriptor, life: Event | None) -> None:
        self.descriptor, self.options, self.life = descriptor, descriptor.options, life
        self.attached: _Attached | None = _Attached.to(descriptor)
        self.count = len(self.attached.shards)
        self.bound: int | None = None
        self.checkpoint = 0
        self.observer: Observer | None = None
        self.limit(self.options.timeout)

    def limit(self, timeout: float | None) -> None:
        """Set the timeout of operations, in seconds."""
        assert self.attached is not None
        shards = self.attached.shards
        self.timeout = timeout
        self.shards = shards if timeout is None else [shard.within(timeout) for shard in shards]
        self._choose_one()

    def bind(self, manager: int) -> None:
        """Use one manager only."""
        self.bound = manager
        self._choose_one()

    def observe(self) -> Observer:
        """Return the observer of this handle's operations; the first call starts it."""
        if self.observer is None:
            observer = self.observer = Observer()
            self.shards = [cast("AnyShard", Observed(shard, observer)) for shard in self.open()]
            self._choose_one()
        return self.observer

    def _choose_one(self) -> None:
        place = 0 if self.count == 1 else self.bound
        self.one = None if place is None else self.shards[place]

    def copied(self) -> Self:
        """Return the same scope for another handle, with the same observer."""
        self.open()
        copied = type(self)(self.descriptor, self.life)
        copied.checkpoint, copied.timeout, copied.bound = self.checkpoint, self.timeout, self.bound
        copied.shards, copied.one, copied.observer = self.shards, self.one, self.observer
        return copied

    def drop(self) -> None:
        """Release the dictionary: every later use raises DestroyedError."""
        self.attached = self.life = self.one = None
        self.shards = []

    def open(self) -> list[AnyShard]:
        """Return the shards of all managers. Raises DestroyedError once the handle is dropped."""
        if self.attached is None:
            raise _core.DestroyedError(f"the dictionary {self.options.name!r} was destroyed or detached here")
        return self.shards

    def shard(self, key: bytes) -> AnyShard:
        """Return the shard that an encoded key belongs to. Raises DestroyedError once the handle is dropped."""
        return self.one or self.open()[self.place(key)]

    def place(self, key: bytes) -> int:
        """Return the manager that an encoded key belongs to."""
        return place_of(key, self.count) if self.bound is None else self.bound

    def used(self) -> list[AnyShard]:
        """Return the shards that the handle uses: all, or the one of the bound manager."""
        shards = self.open()
        return shards if self.bound is None else [shards[self.bound]]

    def on_all(self, method: str, *arguments: Any) -> list[Any]:
        """Call a method of every shard that is used, at the same time, and return the results."""
        pending = [shard.begin(method, *arguments) for shard in self.used()]
        return [one.result(self.timeout) for one in pending]

    def local(self) -> list[LocalShard]:
        """Return the used shards of this node."""
        return [shard.local for shard in self.used() if shard.local is not None]
