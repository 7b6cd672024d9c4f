"""The agent's side of the zygote."""

from __future__ import annotations

import asyncio
import socket

from dragon.agent.processes.spawner import Spawner


def test_nothing_is_to_be_caught_up_with_once_the_zygote_was_told_of_the_end() -> None:
    async def end_and_catch_up() -> None:
        requests, their_requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        events, their_events = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with requests, their_requests, their_events:
            spawner = Spawner(requests, events, lambda _: None)
            spawner.close()
            await spawner.catch_up()  # as a node does whose processes are to be ended because another one is lost

    asyncio.run(end_and_catch_up())
