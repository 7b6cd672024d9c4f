"""Awaits keys of a distributed dictionary."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from dragon.aio.waiting import wait
from dragon.data.ddict import DDict
from dragon.data.ddict.views import equal
from dragon.runtime.handle import Words
from dragon.shards.shard import MISSING
from dragon.shards.transactions import CHANGES

__all__ = ["Dict"]

_KEY_POLL_S = 0.05  # seconds between two reads of a key whose changes cannot be awaited


class Dict:
    """A distributed dictionary whose keys can be awaited until they are written.

    Use the DDict itself for all other operations, which take microseconds on its own node. Raises TypeError for any
    other object.
    """

    def __init__(self, ddict: DDict) -> None:
        if not isinstance(ddict, DDict):
            raise TypeError(f"aio.Dict takes a DDict, not {ddict!r}")
        self._ddict = ddict

    async def get(self, key: Any) -> Any:
        """Wait until a key is written in this checkpoint, and return its value."""
        return await self._until(key, lambda found: True)

    async def wait_for(self, key: Any, value: Any) -> None:
        """Wait until a key has that value."""
        await self._until(key, lambda found: equal(found, value))

    async def _until(self, key: Any, wanted: Callable[[Any], bool]) -> Any:
        codec = self._ddict._codec
        found = await self._ddict._lookups.await_until(
            codec.key(key), lambda value: value is not MISSING and wanted(codec.loaded(value)), _changed
        )
        return codec.loaded(found)


async def _changed(words: Words | None, seen: int) -> None:
    if words is None:
        await asyncio.sleep(_KEY_POLL_S)
    else:
        await wait(words, "Words", "wait", CHANGES, seen)
