"""The shards of one node, without other nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from dragon.agent.shards.shards import Shards
from dragon.runtime.protocol.shards import Settings
from dragon.runtime.run import this_run

SETTINGS = Settings(0, 1, 2**24, name="kept")


class BusyService:
    """A service with pending requests: actions that must follow them wait until they are done."""

    def __init__(self) -> None:
        self.replication = SimpleNamespace(forget=str)
        self.waiting: list[Callable[[], object]] = []

    def afterwards(self, do: Callable[[], object]) -> None:
        self.waiting.append(do)

    def serve(self) -> None:
        """Serve the pending requests, and then perform the waiting actions."""
        while self.waiting:
            self.waiting.pop(0)()


def test_a_kept_dictionary_can_be_restarted_once_its_files_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def keep_and_restart() -> None:
        shards, service = Shards(this_run(), None), BusyService()
        monkeypatch.setattr(shards, "serving", service)
        shards.create("first", SETTINGS)
        before = shards._shard("first", 0)
        kept = shards.keep("first", "name", "its descriptor")
        assert kept is not None
        await asyncio.sleep(0.1)
        assert not kept.done()
        assert shards.kept("name") is None
        service.serve()
        await kept
        assert shards.kept("name") == ("its descriptor", [0])
        shards.revive("second", "name", 0, [])
        assert shards._shard("second", 0) is not before
        shards.destroy("second")
        service.serve()
        await shards.snapshots.finish()

    asyncio.run(keep_and_restart())
