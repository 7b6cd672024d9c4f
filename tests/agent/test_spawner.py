"""The agent's side of the zygote."""

from __future__ import annotations

import asyncio
import socket

from dragon.agent.processes.starting import Spawner


def test_catching_up_with_the_zygote_returns_after_its_end_was_requested() -> None:
    async def end_and_catch_up() -> None:
        requests, their_requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        events, their_events = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with requests, their_requests, their_events:
            spawner = Spawner(requests, events, lambda _: None)
            spawner.close()
            await spawner.catch_up()  # as a node does whose processes are to be ended because another one is lost

    asyncio.run(end_and_catch_up())
