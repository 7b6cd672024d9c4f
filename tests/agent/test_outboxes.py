"""Outboxes: messages to channels of other nodes, while connections break."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from dragon.agent.objects.bell import Bell
from dragon.agent.objects.outboxes import Outboxes
from dragon.agent.wire.links import Links
from dragon.runtime.handle import Channel
from dragon.runtime.run import this_run

NODE = 7
NAME = (64, 1, NODE << 8)  # of a channel of that node


class _Links:
    """A substitute for connections: requests are answered by the test, and messages are recorded."""

    index = 0

    def __init__(self) -> None:
        self.lost: dict[int, str] = {}
        self.unreachable: dict[int, str] = {}
        self.requests: list[asyncio.Future[Any]] = []
        self.sent: list[int] = []  # the flows over which messages were sent

    def call(self, node: int, request: object) -> asyncio.Future[Any]:
        self.requests.append(asyncio.get_running_loop().create_future())
        return self.requests[-1]

    def notify(self, node: int, notice: object) -> None:
        """Ignore a notice."""

    def send_messages(self, node: int, flow: int, kind: int, data: object, start: bytes) -> None:
        self.sent.append(flow)


class _Bell:
    """A substitute for the bell, which the test rings."""

    def listen(self, offset: int, answer: Callable[[], None]) -> None:
        self.ring = answer


def test_a_connection_that_breaks_before_a_reply_was_handled_does_not_hold_messages_back() -> None:
    async def test() -> None:
        this_run()
        links, bell = _Links(), _Bell()
        outboxes = Outboxes(cast(Links, links), cast(Bell, bell))
        outbox = Channel._attached(outboxes.open(1, NAME, droppable=False))
        links.requests[0].set_result((b"", b""))
        outboxes.broken(NODE, "it broke")
        await asyncio.sleep(0)  # the reply is handled now
        outbox.put("a message")
        bell.ring()
        assert links.sent == [2]

    asyncio.run(test())
