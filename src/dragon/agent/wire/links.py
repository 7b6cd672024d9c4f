"""Connections between agents: one for each pair of nodes, made when first needed, and made again when needed again.

Only the front end decides that a node is lost. From then on nothing is accepted from it, over any connection: if it
connects, it is told that it does not belong to the run any more, and the connection is closed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from dragon.agent.wire.bulk import Fabric
from dragon.agent.wire.frames import Forwarded, Frame, Handled, Messages, Noticed
from dragon.agent.wire.kept import KeptFrame, KeptFrames
from dragon.agent.wire.link import Link, Serve
from dragon.agent.wire.responses import Answer, Call
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.membership import Member
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.agents import (
    Left,
    LinkBroken,
    Members,
    MembersEnded,
    Notice,
    Outside,
    Released,
    SignalProcess,
)
from dragon.runtime.protocol.request import Request

__all__ = ["Links"]

log = runtime_log("links")

_CONNECT_TIMEOUT = 10.0
_TRIES = 3  # for a connection that breaks while it is made
_RETRY_S = 1.0  # seconds until a connection is tried again over which kept frames are to be sent
_ACKNOWLEDGE_S = 0.2  # seconds within which kept frames are acknowledged
_KEPT = (Left, Released, MembersEnded, SignalProcess)  # what others say ends with the connection


# What is sent to a node once there is a connection, its payload, and the future of the answer to a request.
_Waiting = tuple[Request[object] | Frame, Any, asyncio.Future[Answer] | None]


def _send_by(link: Link, what: Request[object] | Frame, payload: Any, future: asyncio.Future[Answer] | None) -> None:
    if isinstance(what, Frame):
        link.send(what, payload)
    elif future is not None:
        link.ask(what, payload, future)


class Links:
    """All connections of one agent."""

    def __init__(
        self,
        index: int,
        members: dict[int, Member],
        client: ssl.SSLContext,
        serve: Serve,
        noticed: Callable[[int, Notice], None],
        received: Callable[[int, int, int, Any], asyncio.Future[None] | None],
        is_broken: Callable[[int, str], None],
        fabric: Fabric | None = None,
    ) -> None:
        self.index = index
        self.members = members
        self.serve = serve
        self.noticed = noticed
        self.received = received
        self.fabric = fabric
        self.is_broken = is_broken
        self.before_send: dict[int, Callable[[int], None]] = {}  # by node: called before anything is sent to it
        self.lost: dict[int, str] = {}
        self.unreachable: dict[int, str] = {}  # nodes that the last attempt did not reach, and why
        # Seconds until the front end declares a node without a connection lost. No wait fails earlier,
        # so a node that is reported lost is lost for all nodes.
        self.verdict = 0.0
        self._doubts: dict[int, asyncio.Future[None]] = {}
        self._client = client
        self._links: dict[int, Link] = {}  # used for sending
        self._all: dict[int, list[Link]] = {}  # by node, including those that it made
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._waiting: dict[int, list[_Waiting]] = {}
        self._kept: defaultdict[int, KeptFrames] = defaultdict(KeptFrames)  # by node
        self._unacknowledged: set[int] = set()  # nodes of which kept frames have been handled
        self._loop = asyncio.get_running_loop()

    def accept(self) -> Link:
        """Return the protocol for a connection that another agent made."""
        return Link(self, None)

    def call(
        self,
        node: int,
        request: Request[object],
        payload: Any = b"",
        late: Callable[[Answer], None] | None = None,
    ) -> asyncio.Future[Answer]:
        """Ask another agent. Fails with NodeLostError where it is gone. Where the future is cancelled `late` is called
        with an answer that was given all the same."""
        future = Call(late, self._loop)
        self._send(node, request, payload, future)
        return future

    def notify(self, node: int, notice: Notice) -> None:
        """Send another agent a notice. Those that matter after a connection broke are sent again, and handled once."""
        if isinstance(notice, _KEPT):
            self._keep(node, lambda number: Noticed(notice, number))
        else:
            self._send(node, Noticed(notice), b"", None)

    def forward(self, node: int, request: Request[object]) -> None:
        """Have another agent execute a request, once, even if the connection breaks. Nobody learns its answer."""
        self._keep(node, lambda number: Forwarded(number, request))

    def send_messages(self, node: int, flow: int, kind: int, data: Any, start: bytes = b"") -> None:
        """Send messages of a flow, in order: `start` and `data`. `is_broken` is called if the connection breaks."""
        self._send(node, Messages(flow, kind, start), data, None)

    def host(self, node: int) -> str:
        """Return a node's name for messages."""
        return f"node {node} ({self.members[node].node.host_name})" if node in self.members else f"node {node}"

    def forget(self, node: int, reason: str) -> None:
        """Handle the loss of a node: whatever waits for it fails."""
        if node in self.lost:
            return
        self.lost[node] = reason
        self.unreachable.pop(node, None)
        self._links.pop(node, None)
        self._kept.pop(node, None)
        for link in self._all.pop(node, []):
            link.abort()
        self.is_broken(node, reason)
        self._settle(node)
        self._fail(node, [future for _, _, future in self._waiting.pop(node, [])])

    def settled(self, node: int) -> asyncio.Future[None]:
        """Return a future that is done once it is known whether a node whose connection broke is lost.

        Each caller gets its own future, which it may cancel.
        """
        doubt = self._doubts.get(node)
        if doubt is None:
            doubt = self._loop.create_future()
            doubt.set_result(None)
        return asyncio.shield(doubt)

    def probe(self, node: int) -> None:
        """Find out whether a node whose connection broke is alive, by connecting to it again."""
        if node in self._doubts:
            self.call(node, Members()).add_done_callback(lambda done: done.cancelled() or done.exception())

    def _doubt(self, node: int) -> asyncio.Future[None]:
        if node not in self._doubts and node not in self.lost:
            doubt = self._doubts[node] = self._loop.create_future()
            self._loop.call_later(self.verdict, self._settle, node, doubt)
        return self.settled(node)

    def _settle(self, node: int, when: asyncio.Future[None] | None = None) -> None:
        """End the doubt about a node, but not if it is a later one than `when`."""
        doubt = self._doubts.get(node)
        if doubt is not None and when in (doubt, None):
            del self._doubts[node]
            doubt.set_result(None)

    def close(self) -> None:
        """Close all connections."""
        self._kept.clear()
        for link in [link for links in self._all.values() for link in links]:
            link.abort()

    def _fail(self, node: int, futures: Iterable[asyncio.Future[Answer] | None], reason: str = "") -> None:
        for future in futures:
            if future is not None and not future.done():
                future.set_exception(NodeLostError(self.what_happened(node, reason)))

    def what_happened(self, node: int, reason: str) -> str:
        """Return a text that says whether the node is lost or only the connection to it broke, and why."""
        if node in self.lost:
            return f"{self.host(node)} is lost: {self.lost[node]}"
        return f"the connection to {self.host(node)} broke: {reason}"

    def _send(
        self, node: int, what: Request[object] | Frame, payload: Any, future: asyncio.Future[Answer] | None
    ) -> None:
        link = self._links.get(node)
        if link is not None:
            _send_by(link, what, payload, future)
        elif node in self.lost:
            self._fail(node, [future])
        elif node not in self.members:
            if future is not None:
                future.set_exception(ValueError(f"the run has no node {node}"))
        else:
            self._waiting.setdefault(node, []).append((what, payload, future))
            self._connect_to(node)

    def _keep(self, node: int, make: Callable[[int], KeptFrame]) -> None:
        if node in self.lost or node not in self.members:
            return
        frame = self._kept[node].add(make)
        link = self._links.get(node)
        if link is not None:
            link.send(frame, b"")
        else:
            self._connect_to(node)

    def _send_kept(self, node: int) -> None:
        """Send what is kept for a node over its new connection, or make one for it."""
        link = self._links.get(node)
        if link is not None:
            for frame in self._kept[node]:
                link.send(frame, b"")
        elif node not in self.lost and self._kept[node]:
            self._connect_to(node)

    def _connect_to(self, node: int) -> None:
        if node not in self._connecting:
            self._connecting[node] = self._loop.create_task(self._connect(node))

    async def _connect(self, node: int) -> None:
        member, failure = self.members[node], "it has no address"
        try:
            for address in member.addresses:
                try:
                    await self._open(node, address, member.port)
                    return
                except (TimeoutError, OSError, ssl.SSLError) as error:
                    failure = f"{address} port {member.port}: {str(error) or type(error).__name__}"
            await self._doubt(node)
            self._cannot_reach(node, f"no connection to {failure}")
        finally:
            self._connecting.pop(node, None)

    def _cannot_reach(self, node: int, reason: str) -> None:
        """Fail all that waits for that node; later requests try again."""
        if node in self._links or node in self.lost:
            return  # it connected meanwhile, or was declared lost, and nothing waits any more
        self.unreachable[node] = reason
        self.is_broken(node, reason)
        self._fail(node, [future for _, _, future in self._waiting.pop(node, [])], reason)
        if self._kept[node]:
            self._loop.call_later(_RETRY_S, self._send_kept_later, node)

    def _send_kept_later(self, node: int) -> None:
        if node not in self._links:  # otherwise they were sent when it connected
            self._send_kept(node)

    async def _open(self, node: int, address: str, port: int) -> None:
        """Make a connection. If it breaks while it is made, try again: the node is alive."""
        for left in reversed(range(_TRIES)):
            opening = self._loop.create_connection(lambda: Link(self, node), address, port, ssl=self._client)
            try:
                await asyncio.wait_for(opening, _CONNECT_TIMEOUT)
                return
            except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ssl.SSLError):
                if not left:
                    raise

    def made(self, node: int, link: Link) -> None:
        """Note that a connection to that node is ready."""
        if node in self.lost:
            log.warning(
                "%s connected, but was declared lost (%s); its connection is closed", self.host(node), self.lost[node]
            )
            link.dismiss(Outside(self.lost[node]))
            return
        self.unreachable.pop(node, None)
        self._all.setdefault(node, []).append(link)
        if self._links.setdefault(node, link) is link:
            self._send_kept(node)
        self._settle(node)  # it is alive
        for waiting in self._waiting.pop(node, []):
            _send_by(link, *waiting)

    def broken(self, node: int | None, link: Link, reason: str) -> None:
        """Note that a connection ended."""
        if node is not None:
            others = self._all.get(node, [])
            if link in others:
                others.remove(link)
            was_used = self._links.get(node) is link
            if was_used:
                del self._links[node]
            # If each side made a connection, what one side sent came over its own.
            self.is_broken(node, self.lost.get(node, reason))
            if others:
                # The other side noticed earlier, and made a new one. What was sent to it meanwhile is lost.
                self._links.setdefault(node, others[0]).send(Noticed(LinkBroken(reason)), b"")
            if was_used:
                self._send_kept(node)
            pending = list(link.pending.values())
            settled = self.settled(node) if others else self._doubt(node)
            settled.add_done_callback(lambda _: self._fail(node, pending, reason))
        for cancel in link.serving.values():
            if cancel is not None:
                cancel()
        link.pending, link.serving = {}, {}

    # ---- kept frames of other nodes

    def told(self, node: int, frame: KeptFrame) -> None:
        """Handle a notice, or a request that is not answered, unless it was handled before. Raises ValueError if kept
        frames before it are missing."""
        if frame.number:
            if node not in self._unacknowledged:
                self._unacknowledged.add(node)
                self._loop.call_later(_ACKNOWLEDGE_S, self._acknowledge, node)
            if not self._kept[node].is_new(frame.number):
                return
        if isinstance(frame, Noticed):
            self.noticed(node, frame.notice)
        else:
            self.serve(node, frame.request, b"", lambda *answer: None)

    def acknowledged(self, node: int, number: int) -> None:
        """Note that a node has handled all kept frames up to that number."""
        self._kept[node].acknowledged(number)

    def _acknowledge(self, node: int) -> None:
        self._unacknowledged.discard(node)
        link = self._links.get(node)
        if link is not None:  # otherwise they are sent again
            link.send(Handled(self._kept[node].handled), b"")
