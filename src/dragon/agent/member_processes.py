"""The processes of groups' members, on whichever node they are."""

from __future__ import annotations

import asyncio

import msgspec

from dragon.agent.group import Group, Member
from dragon.agent.mpi.part import Part
from dragon.agent.peers import Peers
from dragon.agent.processes import Processes
from dragon.agent.registry import Registry
from dragon.infrastructure.facts import node_of_puid
from dragon.infrastructure.messages import Instance, Spawn
from dragon.infrastructure.policy import Policy
from dragon.runtime.distribution import choose
from dragon.runtime.nodes import run_nodes

__all__ = ["MemberProcesses", "Requests"]

_LOOK_AGAIN = 0.01

# Of some members: their templates, and of each which of them it has.
Requests = tuple[list[Spawn], list[Instance]]


class MemberProcesses:
    """Starts them, sends them signals, and finds another node for those whose own is lost."""

    def __init__(self, node: int, registry: Registry, processes: Processes, peers: Peers | None) -> None:
        self._node = node
        self._registry = registry
        self._processes = processes
        self._peers = peers
        self._loop = asyncio.get_running_loop()

    def start_here(self, group: Group, members: list[Member], requests: Requests, part: Part | None = None) -> None:
        """Start members on this node, with `part` as the ranks of a job for which it is ready. Raises OSError."""
        started = self._processes.start_here(*requests, group.descriptors, part)
        group.take(members, [request.puid for request in started])

    async def start_on(
        self, node: int, group: Group, members: list[Member], requests: Requests, part: Part | None
    ) -> None:
        """Start members on any node. Raises NodeLostError, OSError, RuntimeError, RemoteError."""
        if self._peers is not None and node != self._node:
            started = await self._peers.start(node, *requests, part=part)
            group.take(members, [puid for puid, _ in started])
            return
        if self._peers is not None:
            await self._peers.announce_all(node, *requests)
        if part is not None:
            await self._processes.prepare(part)
        self.start_here(group, members, requests, part)

    def kill(self, member: Member, number: int) -> None:
        """Send a member a signal."""
        if node_of_puid(member.puid) != self._node and self._peers is not None and member.puid:
            self._peers.kill(member.puid, number)
            return
        try:
            self._registry.kill(member.puid, number)
        except LookupError:
            # Asked for, not yet started: it gets the signal then.
            self._loop.call_later(_LOOK_AGAIN, self.kill, member, number) if member.alive else None

    def move(self, member: Member) -> None:
        """Where its node is lost, a member gets another one."""
        if self._peers is not None and member.template.node in self._peers.lost:
            node = choose(run_nodes(), member.rank, Policy.Distribution.DEFAULT)
            member.template = msgspec.structs.replace(member.template, node=node.index, cpus=[])
