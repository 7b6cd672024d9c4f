"""Finds keys: with the manager that the hash says, with any manager if keys were put through manager(), and by waiting
until a key is written."""

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
from dragon.shards.shard import CHANGES, MISSING

__all__ = ["Asked", "Lookups"]

_KEY_POLL_S = 0.1  # seconds between two searches for a key that may be put to any manager


class Lookups:
    """Finds the keys of a scope. Keys are in their encoded form, values are not decoded."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def value(self, key: bytes) -> Any:
        """Return the value of a key, or MISSING."""
        scope = self._scope
        shard = scope.shard(key)
        value = shard.value(key, scope.checkpoint)
        return self.value_elsewhere(shard, key) if value is MISSING else value

    def value_elsewhere(self, shard: AnyShard, key: bytes) -> Any:
        """Return the value of a key that the shard of its hash does not have, or MISSING."""
        other = self.elsewhere(shard, key)
        return MISSING if other is None else other.value(key, self._scope.checkpoint)

    def elsewhere(self, shard: AnyShard, key: bytes, ask: bool = False) -> AnyShard | None:
        """Return the other shard that holds a key, if it was put through manager(); else None.

        The last reply of the hash's shard says whether any key was put that way; with `ask` it is requested if unknown.
        """
        if not self.is_chosen(ask):
            return None
        others = [other for other in self._scope.open() if other is not shard]
        pending = [other.begin("holds", key, self._scope.checkpoint) for other in others]
        held = [one.result(self._scope.timeout) for one in pending]
        return next((other for other, holds in zip(others, held, strict=True) if holds), None)

    def contains(self, key: bytes) -> bool:
        """Return whether a key exists."""
        shard = self._scope.shard(key)
        return shard.contains(key, self._scope.checkpoint) or self.elsewhere(shard, key) is not None

    def has_had(self, key: bytes) -> bool:
        """Return whether a checkpoint of the working set up to this one has the key."""
        scope = self._scope
        return bool(scope.shard(key).begin("has_had", key, scope.checkpoint).result(scope.timeout))

    def tell(self, key: bytes, name: Any, method: str, *arguments: Any) -> Any:
        """Return the result of a method of the shard that holds a key. `name` is the key as the user gave it.

        Raises DDictKeyError for a missing key.
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
        """Return whether keys may be with other managers than their hashes say, as far as this process knows.

        A process with a shard on its node always knows; for another one, `ask` sends a request if needed.
        """
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
        """Wait until `wanted(value)` of a key's value is true, and return the value, which may be MISSING.

        Raises DDictTimeoutError after `timeout` seconds, None: no limit. `what` names the condition in the message.
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
            if self.is_chosen():  # a change of another shard does not end the wait
                remaining = _KEY_POLL_S if remaining is None else min(remaining, _KEY_POLL_S)
            shard.wait_for_change(seen, remaining)

    async def await_until(
        self, key: bytes, wanted: Callable[[Any], bool], wait: Callable[[Words | None, int], Awaitable[object]]
    ) -> Any:
        """Do the same as wait_until() in an event loop.

        `wait(words, seen)` waits until the first of `words` differs from `seen`, or for a moment if `words` is None.
        """
        shard = self._scope.shard(key)
        while True:
            words = None if self.is_chosen() else shard.changing_words()
            seen = 0 if words is None else words[CHANGES]
            value = self.value(key)
            if wanted(value):
                return value
            await wait(words, seen)

    def wait_for_key(self, key: bytes, name: Any) -> Any:
        """Wait until a key is written in this checkpoint, and return its value. Raises DDictTimeoutError."""
        return self.wait_until(key, _is_there, f"key {name!r} to be written", self._scope.timeout)

    def missing(self, name: Any, shard: AnyShard) -> DDictKeyError:
        """Return the error for a key that a shard does not have."""
        return DDictKeyError(f"no key {name!r} in checkpoint {self._scope.checkpoint} of {shard.where}")


class Asked(Pending):
    """A pending value, which is looked for with other managers if its shard does not have it."""

    def __init__(self, lookups: Lookups, codec: Codec, name: Any, shard: AnyShard, pending: Pending) -> None:
        self._lookups, self._codec, self._name = lookups, codec, name
        self._shard, self._pending = shard, pending

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the value and return it. Raises DDictKeyError."""
        value = self._pending.result(timeout)
        if value is MISSING:
            value = self._lookups.value(self._codec.key(self._name))
            if value is MISSING:
                raise self._lookups.missing(self._name, self._shard)
        return self._codec.loaded(value)


def _is_there(value: Any) -> bool:
    return value is not MISSING
