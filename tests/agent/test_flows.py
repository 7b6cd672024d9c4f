"""Flows: messages from other nodes into channels of this node."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, cast

import pytest

from dragon import _core
from dragon._core import LockedError
from dragon.agent.objects.flows import Flows
from dragon.runtime.handle import Channel
from dragon.runtime.run import this_run

MEBIBYTE = 2**20
MESSAGE = 5  # a kind of message, of which the channel knows nothing


def in_use() -> int:
    gc.collect()  # what tests before this one had
    return int(_core.usage()["in_use"])


def test_flows_of_broken_connections_release_their_channels() -> None:
    this_run()
    told: list[Any] = []
    flows = Flows(lambda *notice: told.append(notice))
    before = in_use()
    channels = [Channel(10, mebibytes=1) for _ in range(3)]
    for number, channel in enumerate(channels, 1):
        flows.open(7, number, channel._name())
        flows.received(7, number, MESSAGE, bytearray(MEBIBYTE // 2))
        channel._close()
    assert in_use() > before + MEBIBYTE
    flows.cut(7, 2)
    assert before + MEBIBYTE // 2 <= in_use() < before + MEBIBYTE  # the third was opened over the next connection
    flows.cut(7, 3)
    assert in_use() < before + MEBIBYTE // 2
    assert told == []


class _Locked:
    """A substitute for a channel whose lock another process holds until it is released."""

    def __init__(self) -> None:
        self.is_locked = True
        self.found: list[bytes] = []

    def _put_parts(self, kind: int, payload: bytes, timeout: float) -> None:
        if self.is_locked:
            raise LockedError
        self.found.append(bytes(payload))


def test_each_message_that_waits_for_a_lock_has_the_whole_time_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def set_limit(seconds: float) -> None:
        monkeypatch.setattr("dragon.agent.objects.flows._IN_ORDER_S", seconds)

    async def test() -> None:
        this_run()
        flows = Flows(lambda *notice: None)
        real, locked = Channel(), _Locked()
        flows.open(7, 1, real._name())
        flows._flows[7, 1]._channel = cast(Channel, locked)
        set_limit(0.5)
        first = flows.received(7, 1, MESSAGE, bytearray(b"first"))
        assert first is not None
        locked.is_locked = False
        await first
        set_limit(60)
        locked.is_locked = True
        second = flows.received(7, 1, MESSAGE, bytearray(b"second"))
        assert second is not None
        await asyncio.sleep(0.7)  # until after the limit of the first message
        assert not second.done()
        locked.is_locked = False
        await second
        assert locked.found == [b"first", b"second"]

    asyncio.run(test())
