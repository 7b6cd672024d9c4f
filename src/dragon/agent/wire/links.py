"""Connections between agents: one for each pair of nodes, made when it is first needed, and again when it is needed
after it broke.

That a node is lost is decided by the front end alone. From then on nothing is taken from it, over no connection: one
that it makes is closed, after it was told that it is outside.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterable
from typing import Any

from dragon.agent.wire.bulk import Fabric
from dragon.agent.wire.frames import Frame, Messages, Noticed
from dragon.agent.wire.link import Link, Serve
from dragon.agent.wire.responses import Answer, Call
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.membership import Member
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.agents import LinkBroken, Members, Notice, Outside
from dragon.runtime.protocol.request import Request

__all__ = ["Links"]

log = runtime_log("links")

_CONNECT_TIMEOUT = 10.0
_TRIES = 3  # to make a connection that breaks while it is made


# What goes to a node once there is a connection, its payload, and the future of the answer to a request.
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
        self.lost: dict[int, str] = {}
        self.unreachable: dict[int, str] = {}  # nodes that the last try to connect did not reach, and why
        # Seconds that a node without a connection has until the front end says that it is lost. No wait fails earlier,
        # so whoever hears of a lost node finds it gone everywhere.
        self.verdict = 0.0
        self._doubts: dict[int, asyncio.Future[None]] = {}
        self._client = client
        self._links: dict[int, Link] = {}  # over which is sent
        self._all: dict[int, list[Link]] = {}  # of each node, what it made too
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._waiting: dict[int, list[_Waiting]] = {}
        self._loop = asyncio.get_running_loop()

    def accept(self) -> Link:
        """The protocol of a connection that another agent made."""
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
        """Tell another agent something."""
        self._send(node, Noticed(notice), b"", None)

    def send_messages(self, node: int, flow: int, kind: int, data: Any, start: bytes = b"") -> None:
        """Send messages of a flow, in order: `start` and `data`. Where the connection breaks `is_broken` says so."""
        self._send(node, Messages(flow, kind, start), data, None)

    def host(self, node: int) -> str:
        """How messages name a node."""
        return f"node {node} ({self.members[node].node.host_name})" if node in self.members else f"node {node}"

    def forget(self, node: int, reason: str) -> None:
        """A node is gone: whatever waits for it fails."""
        if node in self.lost:
            return
        self.lost[node] = reason
        self.unreachable.pop(node, None)
        self._links.pop(node, None)
        for link in self._all.pop(node, []):
            link.abort()
        self.is_broken(node, reason)
        self._settle(node)
        self._fail(node, [future for _, _, future in self._waiting.pop(node, [])])

    def settled(self, node: int) -> asyncio.Future[None]:
        """Done once it is known whether a node whose connection broke is lost. Each caller has one of its own, which it
        may cancel."""
        doubt = self._doubts.get(node)
        if doubt is None:
            doubt = self._loop.create_future()
            doubt.set_result(None)
        return asyncio.shield(doubt)

    def probe(self, node: int) -> None:
        """Find out whether a node whose connection broke is there: a new connection settles it."""
        if node in self._doubts:
            self.call(node, Members()).add_done_callback(lambda done: done.cancelled() or done.exception())

    def _doubt(self, node: int) -> asyncio.Future[None]:
        if node not in self._doubts and node not in self.lost:
            doubt = self._doubts[node] = self._loop.create_future()
            self._loop.call_later(self.verdict, self._settle, node, doubt)
        return self.settled(node)

    def _settle(self, node: int, when: asyncio.Future[None] | None = None) -> None:
        """End the doubt about a node; of a later one than `when` that is not the time."""
        doubt = self._doubts.get(node)
        if doubt is not None and when in (doubt, None):
            del self._doubts[node]
            doubt.set_result(None)

    def close(self) -> None:
        """Close all connections."""
        for link in [link for links in self._all.values() for link in links]:
            link.abort()

    def _fail(self, node: int, futures: Iterable[asyncio.Future[Answer] | None], reason: str = "") -> None:
        for future in futures:
            if future is not None and not future.done():
                future.set_exception(NodeLostError(self.what_happened(node, reason)))

    def what_happened(self, node: int, reason: str) -> str:
        """Whether it is known by now that a node is gone, or only the connection to it broke, and why."""
        if node in self.lost:
            return f"{self.host(node)} is gone: {self.lost[node]}"
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
        """Whatever waits for that node fails; what comes next tries again."""
        if node in self._links or node in self.lost:
            return  # it called meanwhile, or was declared lost, and all that waited was seen to
        self.unreachable[node] = reason
        self.is_broken(node, reason)
        self._fail(node, [future for _, _, future in self._waiting.pop(node, [])], reason)

    async def _open(self, node: int, address: str, port: int) -> None:
        """Make a connection, also where the first ones break on the way: somebody is there, so the node lives."""
        for left in reversed(range(_TRIES)):
            opening = self._loop.create_connection(lambda: Link(self, node), address, port, ssl=self._client)
            try:
                await asyncio.wait_for(opening, _CONNECT_TIMEOUT)
                return
            except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ssl.SSLError):
                if not left:
                    raise

    def made(self, node: int, link: Link) -> None:
        """A connection to that node stands."""
        if node in self.lost:
            log.warning("%s called, which is lost (%s); it is told so", self.host(node), self.lost[node])
            link.dismiss(Outside(self.lost[node]))
            return
        self.unreachable.pop(node, None)
        self._links.setdefault(node, link)
        self._all.setdefault(node, []).append(link)
        self._settle(node)  # it lives
        for waiting in self._waiting.pop(node, []):
            _send_by(link, *waiting)

    def broken(self, node: int | None, link: Link, reason: str) -> None:
        """A connection ended."""
        if node is not None:
            others = self._all.get(node, [])
            if link in others:
                others.remove(link)
            if self._links.get(node) is link:
                del self._links[node]
            # Where each side made a connection what one sent came over the other's.
            self.is_broken(node, self.lost.get(node, reason))
            if others:
                # That side knew earlier, and made another one. What was sent to it meanwhile is lost.
                self._links.setdefault(node, others[0]).send(Noticed(LinkBroken(reason)), b"")
            pending = list(link.pending.values())
            settled = self.settled(node) if others else self._doubt(node)
            settled.add_done_callback(lambda _: self._fail(node, pending, reason))
        for cancel in link.serving.values():
            if cancel is not None:
                cancel()
        link.pending, link.serving = {}, {}
