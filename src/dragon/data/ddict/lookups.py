"""How a handle finds a key: with the manager that its hash says, with any where keys were put through manager(), and
once somebody has written it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from dragon.data.ddict.client import Client
from dragon.data.ddict.shards import AnyShard
from dragon.infrastructure.ddict_errors import DDictTimeoutError
from dragon.runtime.arguments import checked_seconds
from dragon.shards.shard import MISSING

__all__ = ["Lookups"]

_LOOK_AGAIN = 0.1  # seconds between looks for a key that any manager may be given


class Lookups(Client):
    """What of a handle concerns finding keys."""

    def _now(self, key: Any) -> Any:
        """The value of a key, or MISSING."""
        encoded = self._key(key)
        return self._loaded(self._value(self._shard(encoded), encoded))

    def _value(self, shard: AnyShard, encoded: bytes) -> Any:
        """The value of a key as it was put, or MISSING. `shard` is that of its hash."""
        value = shard.value(encoded, self._checkpoint)
        if value is MISSING:
            other = self._elsewhere(shard, encoded)
            return MISSING if other is None else other.value(encoded, self._checkpoint)
        return value

    def _elsewhere(self, shard: AnyShard, encoded: bytes, ask: bool = False) -> AnyShard | None:
        """The shard that holds a key which that of its hash does not have, if it was put through manager(). That one
        has told so with its last answer; otherwise `ask` it."""
        if not self._is_chosen(ask):
            return None
        others = [other for other in self._open_shards() if other is not shard]
        pending = [other.begin("holds", encoded, self._checkpoint) for other in others]
        held = [one.result(self._timeout) for one in pending]
        return next((other for other, holds in zip(others, held, strict=True) if holds), None)

    def _is_chosen(self, ask: bool = False) -> bool:
        """Whether keys may lie with other managers than their hashes say, for this handle, as far as this process was
        told; a process with a shard on its node knows, another one may `ask`."""
        attached = self._attached
        if self._bound is not None or self._count == 1 or attached is None:
            return False
        if not attached.chosen:
            near = next((shard.local for shard in self._shards if shard.local is not None), None)
            if near is not None:
                attached.chosen = near.is_chosen
            else:
                told = any(shard.told_chosen for shard in self._shards)
                attached.chosen = told or (ask and self._shards[0].state()[3])
        return attached.chosen

    def _note_chosen(self) -> None:
        """Have all know that keys may lie with other managers than their hashes say."""
        assert self._attached is not None
        if not self._attached.chosen and self._count > 1:
            for pending in [shard.begin("note_chosen") for shard in self._attached.shards]:
                pending.result(self._timeout)
            self._attached.chosen = True
        self._guarded = self._is_guarded()

    def _await(self, shard: AnyShard, encoded: bytes, key: Any) -> Any:
        """The value of a key as it was put, once it is written in this checkpoint."""
        return self._until(shard, lambda: self._value(shard, encoded), _is_there, self._timeout, _written(key))

    def _until(
        self, shard: AnyShard, look: Callable[[], Any], wanted: Callable[[Any], bool], timeout: float | None, what: str
    ) -> Any:
        timeout = checked_seconds("timeout", timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            seen = shard.changed_since()
            value = look()
            if wanted(value):
                return value
            remaining = None if deadline is None else deadline - time.monotonic()
            if remaining is not None and remaining <= 0:
                raise DDictTimeoutError(
                    f"waited {timeout} s for {what}, in checkpoint {self._checkpoint} of {shard.where}"
                )
            if self._is_chosen():  # another shard's change would not be noticed
                remaining = _LOOK_AGAIN if remaining is None else min(remaining, _LOOK_AGAIN)
            shard.wait_for_change(seen, remaining)


def _is_there(value: Any) -> bool:
    return value is not MISSING


def _written(key: Any) -> str:
    """What somebody waits for."""
    return f"key {key!r} to be written"
