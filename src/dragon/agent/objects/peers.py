"""The other nodes of a run, and the requests to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.facts import node_of_puid
from dragon.infrastructure.membership import Member
from dragon.infrastructure.messages import Name
from dragon.infrastructure.structs import msgspec
from dragon.runtime.protocol.agents import AnnounceFor, SignalProcess
from dragon.runtime.protocol.request import Request, decode_answer
from dragon.runtime.protocol.run import LostNode
from dragon.runtime.remote import node_of

if TYPE_CHECKING:  # the agent of a run of one node has no use for them, and starts sooner without
    from dragon.agent.wire.links import Links
    from dragon.runtime.protocol.agents import Proposal

__all__ = ["Peers"]

_Answer = TypeVar("_Answer")
_REPEAT_S = 0.1  # seconds


class Peers:
    """All nodes of the run; `index` is this one's, and the last `idle` of them are spare."""

    def __init__(
        self,
        index: int,
        members: list[Member],
        links: Links,
        idle: int,
    ) -> None:
        self.index = index
        self.members = members
        self.links = links
        self.lost: dict[int, str] = {}
        self.lost_at: dict[int, int] = {}  # the number of the front end's decision
        # Requests a decision of the front end on the holders of a replicated shard.
        self.propose: Callable[[Proposal], None] = lambda proposal: None
        self._idle = idle

    def host(self, node: int) -> str:
        """Return the host name of a node."""
        return self.members[node].node.host_name

    def active(self) -> list[int]:
        """Return the nodes that programs may use: all live ones except the spare ones."""
        active = max(1, len(self.members) - self._idle)
        return [node for node in range(len(self.members)) if node not in self.lost][:active]

    def lost_nodes(self) -> list[LostNode]:
        """Return the nodes that the run has lost, with the reasons."""
        nodes = [(self.members[index].node, reason) for index, reason in self.lost.items()]
        return [LostNode(node.host_name, node.h_uid, reason) for node, reason in nodes]

    def others(self) -> list[int]:
        """Return all live nodes except this one."""
        return [node for node in range(len(self.members)) if node != self.index and node not in self.lost]

    def leave(self, node: int, reason: str, epoch: int) -> None:
        """Mark a node as lost, by the decision number `epoch`; Links.forget() then lets what waits for it fail."""
        self.lost_at[node] = epoch
        self.lost[node] = reason

    def call(self, node: int, request: Request[object]) -> asyncio.Future[msgspec.Raw]:
        """Send a request. Returns a future of the encoded answer, or of NodeLostError; a repeatable one is repeated."""
        if request.repeatable:
            return asyncio.ensure_future(self._repeat(node, request))
        return self.links.call(node, request)

    async def _repeat(self, node: int, request: Request[object]) -> msgspec.Raw:
        while True:
            try:
                return await self.links.call(node, request)
            except NodeLostError:
                if node in self.links.lost or node in self.links.unreachable:
                    raise
            await asyncio.sleep(_REPEAT_S)

    async def ask(self, node: int, request: Request[_Answer]) -> _Answer:
        """Send a request to another node. Returns the answer."""
        return decode_answer(request, await self.call(node, request))

    def forward(self, node: int, request: Request[None]) -> None:
        """Send a request to another node without waiting for an answer; errors are ignored."""
        self.links.forward(node, request)

    def kill(self, puid: int, number: int) -> None:
        """Send a signal to a process of another node."""
        self.links.forward(node_of_puid(puid), SignalProcess(puid, number))

    async def announce(self, node: int, names: list[Name], count: int = 1) -> None:
        """Keep these objects alive until `count` processes of a node have attached to them."""
        for name in names:
            if node_of(name) == self.index:
                self.links.wire.announce(node, name, count)
            else:
                await self.ask(node_of(name), AnnounceFor(node, name, count))
