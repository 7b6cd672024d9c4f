"""The sessions of an agent with other agents, and their connections, which are made when they are needed.

A connection that breaks is made again at once. Only the front end decides that a node is lost. From then on nothing is
accepted from it, over any connection: if it connects, it is told that it does not belong to the run any more, and the
connection is closed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from dragon.agent.wire.bulk import Fabric
from dragon.agent.wire.frames import Forwarded, Messages, Noticed
from dragon.agent.wire.link import Link
from dragon.agent.wire.responses import Answer, Call
from dragon.agent.wire.session import KeptFrame, KeptFrames, Serve, Session
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.membership import Member
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.agents import Left, Members, MembersEnded, Notice, Outside, Released, SignalProcess
from dragon.runtime.protocol.request import Request

__all__ = ["Links"]

log = runtime_log("links")

_CONNECT_TIMEOUT = 10.0  # seconds
_TRIES = 3  # for a connection that breaks while it is made
_REPAIR_S = 1.0  # seconds in which a broken connection must be made again
_REPAIR_PAUSE_S = 0.1  # seconds between two attempts
_RETRY_S = 1.0  # seconds until a node that could not be reached is tried again, if frames are kept for it
_KEPT = (Left, Released, MembersEnded, SignalProcess)  # what others say ends with the session's epoch


class Links:
    """All sessions of one agent."""

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
        self._sessions: dict[int, Session] = {}
        self._kept: defaultdict[int, KeptFrames] = defaultdict(KeptFrames)  # by node
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._closed = False
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
        session = self._session(node)
        if session is not None:
            session.ask(request, payload, future)
        elif node in self.lost:
            self._fail(node, [future])
        else:
            future.set_exception(ValueError(f"the run has no node {node}"))
        return future

    def notify(self, node: int, notice: Notice) -> None:
        """Send another agent a notice. Notices of the kinds in `_KEPT` are lost only with the node, others also if it
        cannot be reached for a while."""
        session = self._session(node)
        if session is not None:
            keep = isinstance(notice, _KEPT)
            session.send(self._kept[node].add(lambda number: Noticed(notice, number)) if keep else Noticed(notice))

    def forward(self, node: int, request: Request[object]) -> None:
        """Have another agent execute a request, once, unless the node is lost. Nobody learns its answer."""
        session = self._session(node)
        if session is not None:
            session.send(self._kept[node].add(lambda number: Forwarded(number, request)))

    def send_messages(self, node: int, flow: int, kind: int, data: Any, start: bytes = b"") -> None:
        """Send messages of a flow, in order: `start` and `data`. `is_broken` is called if they may be lost."""
        session = self._session(node)
        if session is not None:
            session.send(Messages(flow, kind, start), data)

    def host(self, node: int) -> str:
        """Return a node's name for messages."""
        return f"node {node} ({self.members[node].node.host_name})" if node in self.members else f"node {node}"

    def forget(self, node: int, reason: str) -> None:
        """Handle the loss of a node: whatever waits for it fails."""
        if node in self.lost:
            return
        self.lost[node] = reason
        self.unreachable.pop(node, None)
        self._kept.pop(node, None)
        session = self._sessions.pop(node, None)
        pending = session.end_epoch(session.epoch + 1) if session is not None else []
        if session is not None:
            session.abort()
        self.is_broken(node, reason)
        self._settle(node)
        self._fail(node, pending)

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
        self._closed = True
        for session in self._sessions.values():
            session.abort()

    def _fail(self, node: int, futures: Iterable[asyncio.Future[Answer] | None], reason: str = "") -> None:
        for future in futures:
            if future is not None and not future.done():
                future.set_exception(NodeLostError(self.what_happened(node, reason)))

    def what_happened(self, node: int, reason: str) -> str:
        """Return a text that says whether the node is lost or only the connection to it broke, and why."""
        if node in self.lost:
            return f"{self.host(node)} is lost: {self.lost[node]}"
        return f"the connection to {self.host(node)} broke: {reason}"

    # ---- sessions

    def _session(self, node: int) -> Session | None:
        """Return the session with a node of the run that is not lost."""
        found = self._sessions.get(node)
        if found is None and node in self.members and node not in self.lost:
            found = self._sessions[node] = Session(self, node)
        return found

    def session_of(self, node: int, link: Link) -> Session | None:
        """Return the session for a new connection to that node; None, and dismiss the link, if the node is lost."""
        if node in self.lost:
            log.warning(
                "%s connected, but was declared lost (%s); its connection is closed", self.host(node), self.lost[node]
            )
            link.dismiss(Outside(self.lost[node]))
            return None
        if node not in self._sessions:  # a node that is about to be told who the others are is not a member yet
            self._sessions[node] = Session(self, node)
        return self._sessions[node]

    def made(self, node: int, link: Link) -> None:
        """Note that a connection to that node is ready."""
        self.unreachable.pop(node, None)
        self._settle(node)  # it is alive
        self._sessions[node].add(link)

    def broken(self, node: int | None, link: Link, reason: str) -> None:
        """Note that a connection ended. A new one is made if either side waits for the other."""
        session = self._sessions.get(node) if node is not None else None
        if node is None or session is None:
            return
        session.remove(link)
        session.why_broken = reason
        self._repair(node, session)

    def _repair(self, node: int, session: Session) -> None:
        """Make a connection if there is none, and either side waits for the other."""
        if session.link is None and not session.is_idle and node not in self.lost:
            self.connect_to(node)

    def connect_to(self, node: int) -> None:
        """Make a connection, which is then used."""
        if node in self.members and node not in self._connecting and not self._closed:
            self._connecting[node] = self._loop.create_task(self._connect(node))

    async def _connect(self, node: int) -> None:
        session = self._sessions[node]
        repairs = session.was_connected
        try:
            failure = await self._attempt(node, session, _REPAIR_S if repairs else 0)
            if failure and repairs:
                self._give_up(node, session, session.why_broken)
            elif failure:
                await self._doubt(node)
                self._cannot_reach(node, session, f"no connection to {failure}")
        finally:
            self._connecting.pop(node, None)
        if repairs or not failure:  # in the new epoch; or the new connection broke before this task continued
            self._repair(node, session)

    async def _attempt(self, node: int, session: Session, seconds: float) -> str:
        """Try to connect for that many seconds, at least once. Returns why it failed; nothing if there is a connection,
        or the node is lost."""
        member, failure, until = self.members[node], "it has no address", self._loop.time() + seconds
        await asyncio.sleep(session.pause())
        while session.link is None and node not in self.lost:
            for address in member.addresses:
                try:
                    await self._open(node, address, member.port, seconds or _CONNECT_TIMEOUT)
                    return ""
                except (TimeoutError, OSError, ssl.SSLError) as error:
                    failure = f"{address} port {member.port}: {str(error) or type(error).__name__}"
            if self._loop.time() >= until:
                return failure
            await asyncio.sleep(_REPAIR_PAUSE_S)
        return ""

    def _give_up(self, node: int, session: Session, reason: str, epoch: int = 0) -> None:
        """End the epoch of a session whose connection broke: what was in flight is lost. Requests fail once it is known
        whether the node is lost."""
        pending = self._end_epoch(node, session, reason, epoch)
        settled = self.settled(node) if session.links else self._doubt(node)
        settled.add_done_callback(lambda _: self._fail(node, pending, reason))

    def _end_epoch(self, node: int, session: Session, reason: str, epoch: int = 0) -> list[asyncio.Future[Answer]]:
        pending = session.end_epoch(epoch or session.epoch + 1)
        for frame in self._kept[node]:
            session.queue(frame)
        self.is_broken(node, reason)
        return pending

    def give_up(self, node: int, reason: str) -> None:
        """End the epoch of a session: what is in flight is lost."""
        session = self._sessions.get(node)
        if session is not None:
            self._give_up(node, session, reason)

    def follow_epoch(self, node: int, epoch: int) -> None:
        """Go into the later epoch of the other agent, which could not connect in time."""
        session = self._sessions[node]
        self._give_up(node, session, session.why_broken or "the other side could not connect again in time", epoch)

    def _cannot_reach(self, node: int, session: Session, reason: str) -> None:
        """Fail all that waits for that node; later requests try again, and so do kept frames."""
        if session.link is not None or node in self.lost:
            return  # it connected meanwhile, or was declared lost, and nothing waits any more
        self.unreachable[node] = reason
        self._fail(node, self._end_epoch(node, session, reason), reason)
        if self._kept[node]:
            self._loop.call_later(_RETRY_S, self._repair, node, session)

    async def _open(self, node: int, address: str, port: int, timeout: float) -> None:
        """Make a connection. If it breaks while it is made, try again: the node is alive."""
        for left in reversed(range(_TRIES)):
            opening = self._loop.create_connection(lambda: Link(self, node), address, port, ssl=self._client)
            try:
                await asyncio.wait_for(opening, timeout)
                return
            except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ssl.SSLError):
                if not left:
                    raise

    # ---- kept frames

    def told(self, node: int, frame: KeptFrame) -> None:
        """Handle a notice, or a request that is not answered, unless it was handled before. Raises ValueError if kept
        frames before it are missing."""
        if frame.number and not self._kept[node].is_new(frame.number):
            return
        if isinstance(frame, Noticed):
            self.noticed(node, frame.notice)
        else:
            self.serve(node, frame.request, b"", lambda *answer: None)

    def acknowledged(self, node: int, number: int) -> None:
        """Note that a node has handled all kept frames up to that number."""
        self._kept[node].acknowledged(number)
