"""What a handle works on: a dictionary, all its managers or one of them, in one checkpoint, within a timeout."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar, Self, cast

from dragon import _core
from dragon.data.ddict.creation import Descriptor
from dragon.data.ddict.profile import Observed, Observer
from dragon.data.ddict.replicated import ReplicatedShard
from dragon.data.ddict.shards import AnyShard, LocalShard, open_shard
from dragon.runtime.handle import Event
from dragon.runtime.process_lock import ProcessLock
from dragon.shards.entries import Settings
from dragon.shards.records import place_of

__all__ = ["Scope"]


class _Attached:
    """The shards of a dictionary as this process has them open; all its handles of it share them."""

    _all: ClassVar[weakref.WeakValueDictionary[str, _Attached]] = weakref.WeakValueDictionary()
    _lock = ProcessLock()

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


class Scope:
    """The managers of a dictionary as one handle uses them. Not for several threads at a time.

    Args:
        descriptor: of the dictionary.
        life: exists while a process is attached; None where the node that has it is lost.

    Attributes:
        attached: the shards that this process has open; None once the handle is dropped.
        shards: the same within the timeout, by manager; empty once the handle is dropped.
        count: managers of the dictionary.
        bound: the manager that alone is used, None for all.
        one: its shard, or the only shard of a dictionary of one manager; None where a key's hash decides.
        checkpoint: in which the handle reads and writes.
        timeout: seconds that an operation may take, None for ever.
        observer: counts and logs what the handle does, where that was asked for.
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
        """Let operations take so many seconds."""
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
        """What sees the operations of this handle, from the first call on."""
        if self.observer is None:
            observer = self.observer = Observer()
            self.shards = [cast("AnyShard", Observed(shard, observer)) for shard in self.open()]
            self._choose_one()
        return self.observer

    def _choose_one(self) -> None:
        place = 0 if self.count == 1 else self.bound
        self.one = None if place is None else self.shards[place]

    def copied(self) -> Self:
        """The same for another handle, with the same observer."""
        self.open()
        copied = type(self)(self.descriptor, self.life)
        copied.checkpoint, copied.timeout, copied.bound = self.checkpoint, self.timeout, self.bound
        copied.shards, copied.one, copied.observer = self.shards, self.one, self.observer
        return copied

    def drop(self) -> None:
        """Use nothing of the dictionary any more: every other use raises DestroyedError from now on."""
        self.attached = self.life = self.one = None
        self.shards = []

    def open(self) -> list[AnyShard]:
        """The shards of all managers. Raises DestroyedError once the handle is dropped."""
        if self.attached is None:
            raise _core.DestroyedError(f"the dictionary {self.options.name!r} was destroyed or detached here")
        return self.shards

    def shard(self, key: bytes) -> AnyShard:
        """The shard that an encoded key belongs to. Raises DestroyedError once the handle is dropped."""
        return self.one or self.open()[self.place(key)]

    def place(self, key: bytes) -> int:
        """The manager that an encoded key belongs to."""
        return place_of(key, self.count) if self.bound is None else self.bound

    def used(self) -> list[AnyShard]:
        """The shards that are used: all, or the one that is bound."""
        shards = self.open()
        return shards if self.bound is None else [shards[self.bound]]

    def on_all(self, method: str, *arguments: Any) -> list[Any]:
        """What a method of every shard that is used returns."""
        pending = [shard.begin(method, *arguments) for shard in self.used()]
        return [one.result(self.timeout) for one in pending]

    def local(self) -> list[LocalShard]:
        """Those of them that are on this node."""
        return [shard.local for shard in self.used() if shard.local is not None]
