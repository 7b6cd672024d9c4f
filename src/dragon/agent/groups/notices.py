"""Notifies other nodes of the ends of members of the groups that they follow."""

from __future__ import annotations

import asyncio

from dragon.agent.objects.peers import Peers
from dragon.agent.processes.spawner import Spawner
from dragon.runtime.protocol.agents import MemberEvent, MembersEnded

__all__ = ["GroupNotices"]

_BATCH_S = 0.05  # seconds


class GroupNotices:
    """Each notice wakes another agent, which takes as long as many starts. So while this node is starting processes,
    successful ends are batched."""

    def __init__(self, peers: Peers, spawner: Spawner) -> None:
        self._peers = peers
        self._spawner = spawner
        self._loop = asyncio.get_running_loop()
        self._untold: dict[int, list[MemberEvent]] = {}

    def tell(self, home: int, event: MemberEvent) -> None:
        """Notify the node that follows a group of an event of a member here. Events of a node are sent in order."""
        untold = self._untold.setdefault(home, [])
        untold.append(event)
        if event.failed or event.code != 0 or not self._spawner.unanswered:
            self._send(home)
        elif len(untold) == 1:
            self._loop.call_later(_BATCH_S, self._send, home)

    def _send(self, home: int) -> None:
        events = self._untold.pop(home, [])
        if events and home not in self._peers.lost:
            self._peers.links.notify(home, MembersEnded(events))
