"""The state of a handle: a dictionary, all its managers or one of them, a checkpoint and a timeout.

It finds keys: with the manager that the hash says, with any manager if keys were put through manager(), and by waiting
until a key is written. Keys are in their encoded form, values are before decoding by the program's pickler.
"""

from __future__ import annotations

import copy
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar, Self, cast

from dragon import _core
from dragon.data.ddict.creation import Descriptor
from dragon.data.ddict.profile import Observed, Observer
from dragon.data.ddict.replicated import ReplicatedShard
from dragon.data.ddict.shards import LATER, AnyShard, Done, LocalShard, Pending, RemoteShard
from dragon.infrastructure.ddict_errors import DDictKeyError, DDictTimeoutError
from dragon.runtime.arguments import checked_seconds
from dragon.runtime.handle import Event, Words
from dragon.runtime.protocol.shards import Settings
from dragon.runtime.run import ProcessLock, this_run
from dragon.shards.records import place_of
from dragon.shards.shard import CHANGES, MISSING

_KEY_POLL_S = 0.1  # seconds between two searches for a key that may be put to any manager
_POLL_S = 0.05  # seconds between two looks at a shard whose changes this node cannot see
_KEY_BATCH = 64  # keys of one request


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
                # Close the shards of destroyed dictionaries of that name: a restarted dictionary uses the same files.
                for other in list(cls._all.values()):
                    for shard in other.shards if other.descriptor.options.name == descriptor.options.name else ():
                        if shard.local is not None and shard.local.is_gone:
                            shard.close()
                found = cls._all[descriptor.number] = cls(descriptor)
            return found

    def __del__(self) -> None:
        for shard in getattr(self, "shards", ()):
            shard.close()


def _open(number: str, settings: Settings) -> AnyShard:
    """Open a shard. Raises DestroyedError if it was destroyed, NodeLostError if its node is lost."""
    if settings.holders:
        return ReplicatedShard(number, settings)
    kind = LocalShard.attached if settings.node == this_run().node else RemoteShard
    return kind(number, settings)


class Scope:
    """The managers of a dictionary as one handle uses them. Must not be used by several threads at the same time."""

    def __init__(self, descriptor: Descriptor, life: Event | None) -> None:
        self.descriptor, self.options = descriptor, descriptor.options
        self.life = life  # exists while a process is attached; None if its node is lost
        self.attached: _Attached | None = _Attached.to(descriptor)  # None once the handle is dropped
        self.count = len(self.attached.shards)
        self.bound: int | None = None  # the only manager that the handle uses; None for all
        self.checkpoint = 0
        self.observer: Observer | None = None  # measures and logs the operations of the handle
        self.limit(self.options.timeout)

    def limit(self, timeout: float | None) -> None:
        """Set the timeout of operations, in seconds."""
        assert self.attached is not None
        shards = self.attached.shards
        self.timeout = timeout
        # By manager; empty once the handle is dropped.
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
        # The shard of the bound manager, or of the only one; None if a key's hash decides.
        place = 0 if self.count == 1 else self.bound
        self.one = None if place is None else self.shards[place]

    def copied(self) -> Self:
        """Return the same scope for another handle, with the same observer."""
        self.open()
        return copy.copy(self)

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

    def on_all(self, method: str, *arguments: object) -> list[Any]:
        """Call a method of every shard that is used, at the same time, and return the results."""
        return self.on(self.used(), method, *arguments)

    def on(self, shards: list[AnyShard], method: str, *arguments: object) -> list[Any]:
        """Call a method of these shards, at the same time, and return the results."""
        pending = [shard.begin(method, *arguments) for shard in shards]
        return [one.result(self.timeout) for one in pending]

    def local(self) -> list[LocalShard]:
        """Return the used shards of this node."""
        return [shard.local for shard in self.used() if shard.local is not None]

    # ---- one key

    def value(self, key: bytes) -> object:
        """Return the value of a key, or MISSING."""
        shard = self.shard(key)
        value = shard.value(key, self.checkpoint)
        return self.value_elsewhere(shard, key) if value is MISSING else value

    def value_elsewhere(self, shard: AnyShard, key: bytes) -> object:
        """Return the value of a key that the shard of its hash does not have, or MISSING."""
        other = self.elsewhere(shard, key)
        return MISSING if other is None else other.value(key, self.checkpoint)

    def elsewhere(self, shard: AnyShard, key: bytes, ask: bool = False) -> AnyShard | None:
        """Return the other shard that holds a key, if it was put through manager(); else None.

        The last reply of the hash's shard says whether any key was put that way; with `ask` it is requested if unknown.
        """
        if not self.is_chosen(ask):
            return None
        others = [other for other in self.open() if other is not shard]
        held = self.on(others, "holds", key, self.checkpoint)
        return next((other for other, holds in zip(others, held, strict=True) if holds), None)

    def is_chosen(self, ask: bool = False) -> bool:
        """Return whether keys may be with other managers than their hashes say, as far as this process knows.

        A process with a shard on its node always knows; for another one, `ask` sends a request if needed.
        """
        attached = self.attached
        if self.bound is not None or self.count == 1 or attached is None:
            return False
        if not attached.chosen:
            near = next((shard.local for shard in self.shards if shard.local is not None), None)
            if near is not None:
                attached.chosen = near.is_chosen
            else:
                told = any(shard.told_chosen for shard in self.shards)
                attached.chosen = told or (ask and self.shards[0].call("state")[3])
        return attached.chosen

    def contains(self, key: bytes) -> bool:
        """Return whether a key exists."""
        shard = self.shard(key)
        return shard.contains(key, self.checkpoint) or self.elsewhere(shard, key) is not None

    def tell(self, key: bytes, name: object, method: str, *arguments: object) -> int | bytes:
        """Return the result of a method of the shard that holds a key, the user's `name`. Raises DDictKeyError."""
        shard = self.shard(key)
        found: int | bytes | None = shard.call(method, key, self.checkpoint, *arguments)
        if found is None and (other := self.elsewhere(shard, key, ask=True)) is not None:
            found = other.call(method, key, self.checkpoint, *arguments)
        if found is None:
            raise self.missing(name, shard)
        return found

    def missing(self, name: object, shard: AnyShard) -> DDictKeyError:
        """Return the error for a key that a shard does not have."""
        return DDictKeyError(f"no key {name!r} in checkpoint {self.checkpoint} of {shard.where}")

    def wait_until(self, key: bytes, wanted: Callable[[object], bool], what: str, timeout: float | None) -> object:
        """Wait until `wanted(value)` of a key is true, and return the value. A DDictTimeoutError names `what`."""
        shard, timeout = self.shard(key), checked_seconds("timeout", timeout)
        # If keys may be with other managers, a change of another shard does not end the wait.
        for _ in looks(shard, timeout, lambda: _KEY_POLL_S if self.is_chosen() else None):
            value = self.value(key)
            if wanted(value):
                return value
        raise DDictTimeoutError(f"waited {timeout} s for {what}, in checkpoint {self.checkpoint} of {shard.where}")

    async def await_until(
        self, key: bytes, wanted: Callable[[object], bool], wait: Callable[[Words | None, int], Awaitable[object]]
    ) -> object:
        """Do the same as wait_until() in an event loop. `wait(words, seen)` waits until the first of `words` differs
        from `seen`, or for a moment if `words` is None."""
        shard = self.shard(key)
        while True:
            words = None if self.is_chosen() else shard.changing_words()
            seen = change_of(words)
            value = self.value(key)
            if wanted(value):
                return value
            await wait(words, seen)

    def wait_for_key(self, key: bytes, name: object) -> object:
        """Wait until a key is written in this checkpoint, and return its value. Raises DDictTimeoutError."""
        return self.wait_until(key, lambda value: value is not MISSING, f"key {name!r} to be written", self.timeout)

    # ---- many keys

    def stored_keys(self, managers: list[int] | None = None) -> Iterator[tuple[AnyShard, bytes]]:
        """Yield all keys, or those of some managers, with the shard that holds each; a broadcast key once."""
        shards = self.used() if managers is None else [self.open()[manager] for manager in managers]
        for shard, keys in zip(shards, self.on(shards, "keys", self.checkpoint), strict=True):
            for key in keys:
                yield shard, key

    def present(self, keys: Iterable[tuple[AnyShard, bytes]]) -> Iterator[tuple[bytes, Any]]:
        """Yield keys of shards that exist with their values before decoding, read in batches."""
        wanted = iter(keys)
        while together := list(islice(wanted, _KEY_BATCH)):
            for (shard, key), one in zip(together, self._ask_others(together), strict=True):
                value = shard.value(key, self.checkpoint) if one is None else one.result(self.timeout)
                if value is not MISSING:
                    yield key, value

    def _ask_others(self, keys: list[tuple[AnyShard, bytes]]) -> list[Pending | None]:
        """Request values from other nodes; None for a value of this node, which is read only when it is needed."""
        far: dict[AnyShard, list[int]] = {}
        for place, (shard, _) in enumerate(keys):
            if shard.local is None:
                far.setdefault(shard, []).append(place)
        asked = [shard.begin("values", [keys[i][1] for i in places], self.checkpoint) for shard, places in far.items()]
        pending: list[Pending | None] = [None] * len(keys)
        for (shard, places), values in zip(far.items(), asked, strict=True):
            for place, value in zip(places, values.result(self.timeout), strict=True):
                late = value is LATER
                pending[place] = shard.begin("value", keys[place][1], self.checkpoint) if late else Done(value)
        return pending


def change_of(words: Words | None) -> int:
    """Return a number of changing_words() that differs after a change."""
    return 0 if words is None else words[CHANGES]


def looks(shard: AnyShard, timeout: float | None, poll: Callable[[], float | None]) -> Iterator[bool]:
    """Yield at once and after each change of a shard (True), and after poll() seconds without, until `timeout`."""
    deadline = None if timeout is None else time.monotonic() + timeout
    changed = True
    while True:
        seen = change_of(words := shard.changing_words())
        yield changed
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            return
        least = min((seconds for seconds in (left, poll()) if seconds is not None), default=None)
        if words is None:
            time.sleep(_POLL_S if least is None else min(least, _POLL_S))
        changed = words is None or words.wait(CHANGES, seen, least) is not None
