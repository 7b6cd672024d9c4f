"""How an agent connects to the others of its run, and keeps their messages until it serves them."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field

from dragon.agent.objects.peers import Peers
from dragon.agent.wire.bulk import Fabric
from dragon.agent.wire.links import Links, Serve
from dragon.control import Control
from dragon.infrastructure.errors import NodeLostError, RunEndedError
from dragon.infrastructure.membership import Member, Membership, parent_of
from dragon.infrastructure.messages import encode
from dragon.infrastructure.structs import msgspec
from dragon.runtime.credentials import client_context, server_context
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.agents import Bye, Members
from dragon.runtime.protocol.request import decode_answer

log = runtime_log("cluster")

_SHUTDOWN_TIMEOUT_S = 5.0
_MEMBERS = encode(Members())


class EarlyMessages:
    """Lets requests of other nodes wait, in order, until this node serves them; but tells them the members at once."""

    def __init__(self) -> None:
        self.members: asyncio.Future[list[Member]] = asyncio.get_running_loop().create_future()
        self._is_served = asyncio.Event()
        self._serve: Serve

    def serve(self, node: int, body: bytes | msgspec.Raw) -> asyncio.Future[object]:
        """Return a future of the answer."""
        return asyncio.ensure_future(self._answer(node, body))

    async def _answer(self, node: int, body: bytes | msgspec.Raw) -> object:
        if bytes(body) == _MEMBERS:
            return await asyncio.shield(self.members)
        await self._is_served.wait()
        answer = self._serve(node, body)
        return await answer if isinstance(answer, asyncio.Future) else answer

    def hand_over(self, links: Links, serve: Serve) -> None:
        """Have everything handled from now on."""
        self._serve = serve
        self._is_served.set()
        asyncio.get_running_loop().call_soon(links.serve_by, serve)  # after those that wait, so all are in order


@dataclass(frozen=True)
class Connections:
    """The other nodes of the run, and the connections to them and to the front end. `early` has the messages of other
    nodes so far. `front_end_gone` is set once the front end has closed its connection."""

    membership: Membership
    control: Control
    peers: Peers
    early: EarlyMessages
    fabric: Fabric | None
    front_end_gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def leave(self) -> None:
        """Send Bye to the front end once everything here has ended, and wait until it acknowledges."""
        self.peers.links.close()
        if self.fabric is not None:
            self.fabric.close()
        self.control.send(Bye())
        try:
            async with asyncio.timeout(_SHUTDOWN_TIMEOUT_S):
                await self.front_end_gone.wait()
        except TimeoutError:
            log.warning("the front end did not acknowledge shutdown within %g s", _SHUTDOWN_TIMEOUT_S)


async def connect_nodes(
    membership: Membership, control: Control, listener: socket.socket, fabric: Fabric | None, *, plain: bool
) -> Connections:
    """Connect to the other nodes, given the membership from the front end, and get the list of members."""
    index, early = membership.index, EarlyMessages()
    keys = (membership.authority, membership.certificate, membership.key)
    near = {parent_of(index): membership.parent} if membership.parent is not None else {}
    contexts = client_context(*keys), server_context(*keys)
    links = Links(index, near, contexts, early.serve, fabric, plain=plain)
    links.listen(listener)
    members = await _members(links, control, index) if near else membership.members
    links.members = dict(enumerate(members))
    links.wire.set_nodes(len(members))
    peers = Peers(index, members, links, membership.settings.get("idle", 0))
    early.members.set_result(members)
    return Connections(membership, control, peers, early, fabric)


async def _members(links: Links, control: Control, index: int) -> list[Member]:
    """Return the members from the parent node, or, if that is lost, from the front end."""
    question = Members()
    try:
        return decode_answer(question, await links.call(parent_of(index), question))
    except NodeLostError:
        pass
    try:
        return decode_answer(question, await control.ask(question))
    except ConnectionError as error:
        raise RunEndedError("the front end ended before this node had connected to the others") from error
