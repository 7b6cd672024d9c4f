"""Descriptors for channels of a node that cannot be reached for some time."""

from __future__ import annotations

import asyncio

import msgspec
from ends import Ends, run

from dragon.agent.objects.watches import ProxyChannels
from dragon.infrastructure.messages import Name
from dragon.runtime.handle import Channel
from dragon.runtime.protocol.agents import WatchReadable

NAME: Name = (64, 1, 1 << 8)  # of a channel of node 1


async def watched(ends: Ends) -> None:
    """Wait until node 1 is asked to report whether the channel can be read."""
    while (0, WatchReadable(NAME, True)) not in ends.told:
        await asyncio.sleep(0.01)
    ends.told.clear()


async def until(channel: Channel, is_readable: bool) -> None:
    while bool(channel._wait_readable(0)) is not is_readable:
        await asyncio.sleep(0.01)


def test_a_channel_is_watched_again_once_its_node_can_be_reached_again() -> None:
    async def test(ends: Ends) -> None:
        links = ends.links[0]
        proxies = ProxyChannels(links)
        links.is_broken = proxies.broken
        opened = proxies.open(1, NAME)
        await watched(ends)
        proxies.reported(NAME, False)
        proxy = Channel._attached(await opened)

        there = links.members[1]
        links.members[1] = msgspec.structs.replace(there, port=1)  # nobody listens there
        ends.links[1].close()
        await until(proxy, True)  # recv() raises an error at once

        links.members[1] = there
        await watched(ends)
        proxies.reported(NAME, False)
        await until(proxy, False)

    run(test)
