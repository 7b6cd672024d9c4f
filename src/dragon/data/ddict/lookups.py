"""How a key is found: with the manager that its hash says, with any where keys were put through manager(), and once
somebody has written it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from dragon.data.ddict.codec import Codec
from dragon.data.ddict.scope import Scope
from dragon.data.ddict.shards import AnyShard, Pending
from dragon.infrastructure.ddict_errors import DDictKeyError, DDictTimeoutError
from dragon.runtime.arguments import checked_seconds
from dragon.runtime.handle import Words
from dragon.shards.shard import MISSING
from dragon.shards.transactions import CHANGES

__all__ = ["Asked", "Lookups"]

_KEY_POLL_S = 0.1  # seconds between looks for a key that any manager may be given


class Lookups:
    """Finds the keys of a scope, which are given as they are stored."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def value(self, key: bytes) -> Any:
        """The value of a key as it was put, or MISSING."""
        scope = self._scope
        shard = scope.shard(key)
        value = shard.value(key, scope.checkpoint)
        return self.value_elsewhere(shard, key) if value is MISSING else value

    def value_elsewhere(self, shard: AnyShard, key: bytes) -> Any:
        """The value of a key that the shard of its hash does not have, or MISSING."""
        other = self.elsewhere(shard, key)
        return MISSING if other is None else other.value(key, self._scope.checkpoint)

    def elsewhere(self, shard: AnyShard, key: bytes, ask: bool = False) -> AnyShard | None:
        """The shard that holds a key which that of its hash does not have, if it was put through manager(). That one
        has told so with its last answer; otherwise `ask` it."""
        if not self.is_chosen(ask):
            return None
        others = [other for other in self._scope.open() if other is not shard]
        pending = [other.begin("holds", key, self._scope.checkpoint) for other in others]
        held = [one.result(self._scope.timeout) for one in pending]
        return next((other for other, holds in zip(others, held, strict=True) if holds), None)

    def contains(self, key: bytes) -> bool:
        """Whether a key is there."""
        shard = self._scope.shard(key)
        return shard.contains(key, self._scope.checkpoint) or self.elsewhere(shard, key) is not None

    def has_had(self, key: bytes) -> bool:
        """Whether a checkpoint of the working set up to this one has the key."""
        scope = self._scope
        return bool(scope.shard(key).begin("has_had", key, scope.checkpoint).result(scope.timeout))

    def tell(self, key: bytes, name: Any, method: str, *arguments: Any) -> Any:
        """What a method of the shard that holds a key tells about its value.

        Raises DDictKeyError, which calls the key `name`, where there is none.
        """
        scope = self._scope
        shard = scope.shard(key)
        found = shard.begin(method, key, scope.checkpoint, *arguments).result(scope.timeout)
        if found is None and (other := self.elsewhere(shard, key, ask=True)) is not None:
            found = other.begin(method, key, scope.checkpoint, *arguments).result(scope.timeout)
        if found is None:
            raise self.missing(name, shard)
        return found

    def is_chosen(self, ask: bool = False) -> bool:
        """Whether keys may lie with other managers than their hashes say, for this handle, as far as this process was
        told; a process with a shard on its node knows, another one may `ask`."""
        scope = self._scope
        attached = scope.attached
        if scope.bound is not None or scope.count == 1 or attached is None:
            return False
        if not attached.chosen:
            near = next((shard.local for shard in scope.shards if shard.local is not None), None)
            if near is not None:
                attached.chosen = near.is_chosen
            else:
                told = any(shard.told_chosen for shard in scope.shards)
                attached.chosen = told or (ask and scope.shards[0].state()[3])
        return attached.chosen

    def wait_until(self, key: bytes, wanted: Callable[[Any], bool], what: str, timeout: float | None) -> Any:
        """The value of a key as it was put, once it is `wanted`; it may be MISSING.

        Raises DDictTimeoutError, which says `what` was waited for, after `timeout` seconds; None waits for ever.
        """
        scope, shard = self._scope, self._scope.shard(key)
        timeout = checked_seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            seen = shard.changed_since()
            value = self.value(key)
            if wanted(value):
                return value
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise DDictTimeoutError(
                    f"waited {timeout} s for {what}, in checkpoint {scope.checkpoint} of {shard.where}"
                )
            if self.is_chosen():  # another shard's change would not be noticed
                remaining = _KEY_POLL_S if remaining is None else min(remaining, _KEY_POLL_S)
            shard.wait_for_change(seen, remaining)

    async def await_until(
        self, key: bytes, wanted: Callable[[Any], bool], wait: Callable[[Words | None, int], Awaitable[object]]
    ) -> Any:
        """The same in an event loop, where `wait` waits until the first of some words is no longer of a value, or,
        without words, for a moment."""
        shard = self._scope.shard(key)
        while True:
            words = None if self.is_chosen() else shard.changing_words()
            seen = 0 if words is None else words[CHANGES]
            value = self.value(key)
            if wanted(value):
                return value
            await wait(words, seen)

    def wait_for_key(self, key: bytes, name: Any) -> Any:
        """The value of a key as it was put, once it is written in this checkpoint. Raises DDictTimeoutError."""
        return self.wait_until(key, _is_there, f"key {name!r} to be written", self._scope.timeout)

    def missing(self, name: Any, shard: AnyShard) -> DDictKeyError:
        """The error for a key that a shard does not have."""
        return DDictKeyError(f"no key {name!r} in checkpoint {self._scope.checkpoint} of {shard.where}")


class Asked(Pending):
    """A value that was asked for."""

    def __init__(self, lookups: Lookups, codec: Codec, name: Any, shard: AnyShard, pending: Pending) -> None:
        self._lookups, self._codec, self._name = lookups, codec, name
        self._shard, self._pending = shard, pending

    def result(self, timeout: float | None = None) -> Any:
        """The value. Raises DDictKeyError."""
        value = self._pending.result(timeout)
        if value is MISSING:
            value = self._lookups.value(self._codec.key(self._name))
            if value is MISSING:
                raise self._lookups.missing(self._name, self._shard)
        return self._codec.loaded(value)


def _is_there(value: Any) -> bool:
    return value is not MISSING
