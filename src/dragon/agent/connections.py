"""How an agent connects to the others of its run, and keeps their messages until it serves them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from dragon.agent.objects.peers import Peers
from dragon.agent.wire.bulk import Fabric
from dragon.agent.wire.links import Links
from dragon.control import Control
from dragon.infrastructure.errors import NodeLostError, RunEndedError
from dragon.infrastructure.membership import Member, Membership, parent_of
from dragon.runtime.credentials import client_context, server_context
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.agents import Members, Notice
from dragon.runtime.protocol.front_end import AskMembers, Bye, End, Message, TellMembers
from dragon.runtime.protocol.request import Request, decode_answer

log = runtime_log("cluster")

_SHUTDOWN_TIMEOUT_S = 5.0

# A function that cancels a request, if that is possible.
Cancel = Callable[[], Any] | None


class Receiver(Protocol):
    """Handles the requests and notices of other nodes."""

    def serve(self, node: int, request: Request[object], payload: Any, respond: Callable[..., None]) -> Cancel:
        """Execute a request of a node and call `respond` with the answer."""

    def on_notice(self, node: int, notice: Notice) -> None:
        """Handle a node's notice, which has no answer."""

    def on_link_broken(self, node: int, reason: str) -> None:
        """Discard what was in flight to a node."""


class EarlyMessages:
    """Keeps the requests and notices of other nodes, in order, until this node serves them. The list of members is
    answered as soon as it is known."""

    def __init__(self) -> None:
        self.members: asyncio.Future[list[Member]] = asyncio.get_running_loop().create_future()
        self._kept: list[Callable[[Receiver], object]] = []

    def hand_over(self, links: Links, receiver: Receiver) -> None:
        """Let the receiver handle what was kept, and everything from now on."""
        for do in self._kept:
            try:
                do(receiver)
            except Exception:
                log.exception("another node sent a malformed message while this one started")
        self._kept = []
        links.serve, links.noticed, links.is_broken = receiver.serve, receiver.on_notice, receiver.on_link_broken

    def serve(self, node: int, request: Request[object], payload: Any, respond: Callable[..., None]) -> Cancel:
        """Keep a request."""
        if isinstance(request, Members):
            self.members.add_done_callback(lambda known: respond(known.result()))
        else:
            self._kept.append(lambda receiver: receiver.serve(node, request, payload, respond))
        return None

    def on_notice(self, node: int, notice: Notice) -> None:
        """Keep a notice."""
        self._kept.append(lambda receiver: receiver.on_notice(node, notice))

    def on_link_broken(self, node: int, reason: str) -> None:
        """Do nothing: no connection is in use yet."""


@dataclass(frozen=True)
class Connections:
    """The other nodes of the run, and the connections to them and to the front end. `early` has the messages of other
    nodes so far, `messages` those of the front end. `front_end_gone` is set once the front end has closed its
    connection."""

    membership: Membership
    control: Control
    peers: Peers
    early: EarlyMessages
    messages: list[Message]
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
    index, early, messages = membership.index, EarlyMessages(), list[Message]()
    keys = (membership.authority, membership.certificate, membership.key)
    near = {parent_of(index): membership.parent} if membership.parent is not None else {}
    contexts = client_context(*keys), server_context(*keys)
    links = Links(index, near, contexts, early.serve, early.on_notice, early.on_link_broken, fabric, plain=plain)
    links.listen(listener)
    members = await _members(links, control, index, messages) if near else membership.members
    links.members = dict(enumerate(members))
    links.wire.set_nodes(len(members))
    peers = Peers(index, members, links, membership.settings.get("idle", 0))
    early.members.set_result(members)
    return Connections(membership, control, peers, early, messages, fabric)


async def _members(links: Links, control: Control, index: int, messages: list[Message]) -> list[Member]:
    """Return the members from the parent node, or, if that is lost or the run is ending, from the front end."""
    question = Members()
    try:
        answer, _ = await links.call(parent_of(index), question)
        return decode_answer(question, answer)
    except NodeLostError:
        control.send(AskMembers())
    while True:
        try:
            message = await control.receive()
        except ConnectionError as error:
            raise RunEndedError("the front end ended before this node had connected to the others") from error
        match message:
            case End():
                raise RunEndedError("the run ended before this node had connected to the others")
            case TellMembers(members):
                return members
        messages.append(message)
