"""Messages from other nodes on their way into channels of this node."""

from __future__ import annotations

import gc
from typing import Any

from dragon import _core
from dragon.agent.objects.flows import Flows
from dragon.runtime.handle import Channel
from dragon.runtime.run import this_run

MEBIBYTE = 2**20
MESSAGE = 5  # a kind of message, of which the channel knows nothing


def in_use() -> int:
    gc.collect()  # what tests before this one had
    return int(_core.usage()["in_use"])


def test_flows_over_a_connection_that_broke_there_let_go_of_their_channels() -> None:
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
