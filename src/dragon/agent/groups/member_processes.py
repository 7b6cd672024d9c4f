"""The processes of groups' members, on any node, and the notices of their ends to the nodes that follow the group."""

from __future__ import annotations

import asyncio

import msgspec

from dragon.agent.groups.group import Group, Member
from dragon.agent.objects.peers import Peers
from dragon.agent.processes.registry import Registry
from dragon.agent.processes.starting import Processes, Spawner
from dragon.infrastructure.facts import node_of_puid
from dragon.infrastructure.messages import Instance, Spawn
from dragon.infrastructure.node_desc import choose
from dragon.infrastructure.policy import Policy
from dragon.runtime.nodes import run_nodes
from dragon.runtime.protocol.agents import MemberEvent, MembersEnded
from dragon.runtime.protocol.jobs import Part

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


# The templates of some members, and their instances.
Requests = tuple[list[Spawn], list[Instance]]


class MemberProcesses:
    """Starts the processes of members, sends them signals, and chooses another node for those whose node is lost."""

    def __init__(self, node: int, registry: Registry, processes: Processes, peers: Peers | None) -> None:
        self._node = node
        self._registry = registry
        self._processes = processes
        self._peers = peers

    def start_here(self, group: Group, members: list[Member], requests: Requests, part: Part | None = None) -> None:
        """Start members on this node; with `part` as the ranks of a prepared job. Raises OSError."""
        started = self._processes.start_here(*requests, group.descriptors, part)
        self._take(group, members, [request.puid for request in started])

    async def start_on(
        self, node: int, group: Group, members: list[Member], requests: Requests, part: Part | None
    ) -> None:
        """Start members on any node. Raises NodeLostError, OSError, RuntimeError, RemoteError."""
        if self._peers is not None and node != self._node:
            started = await self._processes.start_on(node, *requests, group.descriptors, part=part)
            self._take(group, members, [puid for puid, _ in started])
            return
        if self._peers is not None:
            await self._peers.announce_all(node, *requests)
        if part is not None:
            await self._processes.prepare(part)
        self.start_here(group, members, requests, part)

    def _take(self, group: Group, members: list[Member], puids: list[int]) -> None:
        group.take(members, puids)
        for member in members:
            signals, member.signals = member.signals, []
            for number in signals:
                self.kill(member, number)

    def kill(self, member: Member, number: int) -> None:
        """Send a member a signal; if it is being started, it gets the signal afterwards."""
        if not member.puid:
            member.signals.append(number)
        elif node_of_puid(member.puid) != self._node and self._peers is not None:
            self._peers.kill(member.puid, number)
        else:
            self._registry.signal(member.puid, number)

    def move(self, member: Member) -> None:
        """Choose another node for a member whose node is lost."""
        if self._peers is not None and member.template.node in self._peers.lost:
            node = choose(run_nodes(), member.rank, Policy.Distribution.DEFAULT)
            member.template = msgspec.structs.replace(member.template, node=node.index, cpus=[])
