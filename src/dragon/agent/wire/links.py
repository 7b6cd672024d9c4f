"""The connections of an agent with other agents, which are made when they are needed, and what Python's parts of the
agents say over them. The wire, a thread in the core, does everything else.

A connection that breaks is made again at once. Only the front end decides that a node is lost. From then on nothing is
accepted from it, over any connection: if it connects, it is told that it does not belong to the run any more.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from dragon import _core
from dragon.agent.wire.handshake import Fabric, Hello, Lane, Shaken, shake_hands
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.membership import Member
from dragon.infrastructure.messages import encode
from dragon.infrastructure.start_request import Name
from dragon.infrastructure.structs import msgspec
from dragon.runtime.credentials import Callers
from dragon.runtime.log import Once, runtime_log
from dragon.runtime.protocol.agents import AnnounceFor, Members, Outside, Proposal
from dragon.runtime.protocol.objects import WhyGone
from dragon.runtime.protocol.request import Request, decode_answer
from dragon.runtime.remote import node_of
from dragon.runtime.rpc import Asked, RemoteError, Session, decode_frame, serves

log = runtime_log("links")

_CONNECT_TIMEOUT = 10.0  # seconds
_HANDSHAKE_WITHIN_S = 5.0
_TRIES = 3  # for a connection that breaks while it is made
_REPAIR_S = 1.0  # seconds in which a broken connection must be made again
_REPAIR_PAUSE_S = 0.1  # seconds between two attempts
_RETRY_S = 1.0  # seconds until a node that could not be reached is tried again, if frames are kept for it
_REPEAT_S = 0.1  # seconds until a request is repeated whose connection broke
_MOST_FAILURES, _FAILURES_S = 3, 60.0  # of one kind in that time, after which trying again is of no use

_Answer = TypeVar("_Answer")
# Handles an encoded request of a node: returns the answer or a future of it, or raises.
Serve = Callable[[int, bytes | msgspec.Raw], object]


class Links:
    """All nodes of the run, of which `index` is this one's and the last `idle` are spare, and the sessions with them.

    `is_broken` is called when what was in flight to a node is lost. `on_event` handles events of the wire that are not
    about connections, by their kind. `propose` requests a decision of the front end on the holders of a shard.
    """

    def __init__(
        self,
        index: int,
        members: dict[int, Member],
        contexts: tuple[ssl.SSLContext, ssl.SSLContext],
        serve: Serve,
        fabric: Fabric | None = None,
        *,
        plain: bool = False,
    ) -> None:
        self.index = index
        self.members = members
        self.idle = 0
        self.serve = serve
        self.propose: Callable[[Proposal], None] = lambda proposal: None
        self.is_broken: Callable[[int], object] = lambda node: None  # nothing is in flight until this is set
        self.lost: dict[int, str] = {}
        self.lost_at: dict[int, int] = {}  # the number of the front end's decision
        self.unreachable: dict[int, str] = {}  # nodes that the last attempt did not reach, and why
        # Seconds until the front end declares a node without a connection lost. No wait fails earlier,
        # so a node that is reported lost is lost for all nodes.
        self.verdict = 0.0
        self.wire = _core.Wire(index)
        self._operating: dict[int, asyncio.Future[tuple[Any, Any]]] = {}  # by number
        self.on_event: dict[str, Callable[[_core.WireEvent], object]] = dict.fromkeys(
            ("Outcome", "Got", "Failed"), self._operated
        )
        self._client, self._server = contexts
        self._fabric, self._plain = fabric, plain
        self._lanes: dict[int, Lane] = {}  # by the connection's number
        self._sessions: dict[int, Session] = {}
        self._doubts: dict[int, asyncio.Future[None]] = {}
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._why_broken: dict[int, str] = {}  # by node: the last connection that ended
        self._tried: dict[int, float] = {}  # when a connection was made last
        self._failures: dict[tuple[int, str], deque[float]] = {}
        self._listener: Callers | None = None
        self._tell = Once(log)
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.wire.fileno(), self._take)

    # ---- what this agent says

    def call(self, node: int, request: Request[object]) -> asyncio.Future[msgspec.Raw]:
        """Ask another agent. Returns a future of the encoded answer, which fails with NodeLostError if it is gone."""
        future: asyncio.Future[msgspec.Raw] = self._loop.create_future()
        session = self._session(node)
        if session is not None:
            session.ask(request, future)
        elif node in self.lost:
            self._fail(node, [future])
        else:
            future.set_exception(ValueError(f"the run has no node {node}"))
        return future

    def reach(self, node: int, request: Request[object]) -> asyncio.Future[msgspec.Raw]:
        """Ask another agent; a repeatable request is repeated until the node answers or is out of reach."""
        return asyncio.ensure_future(self._repeat(node, request)) if request.repeatable else self.call(node, request)

    async def _repeat(self, node: int, request: Request[object]) -> msgspec.Raw:
        while True:
            try:
                return await self.call(node, request)
            except NodeLostError:
                if node in self.lost or node in self.unreachable:
                    raise
            await asyncio.sleep(_REPEAT_S)

    async def ask(self, node: int, request: Request[_Answer]) -> _Answer:
        return decode_answer(request, await self.reach(node, request))

    async def announce(self, node: int, names: list[Name], count: int = 1) -> None:
        """Keep these objects alive until `count` processes of a node have attached to them."""
        for name in names:
            if node_of(name) == self.index:
                self.wire.announce(node, name, count)
            else:
                await self.ask(node_of(name), AnnounceFor(node, name, count))

    def forward(self, node: int, request: Request[None]) -> None:
        """Have another agent execute a request, once, unless the node is lost. Nobody learns its answer."""
        if self._session(node) is not None:
            self.wire.send(node, encode(Asked(0, request)), None, True)

    def lend(self, leads_to: Name, head: bytes, buffers: list[memoryview]) -> None:
        """Send a message with this head for each buffer to a channel of another node, after those that processes have
        put. Buffers are kept until they are sent."""
        for buffer in buffers:
            kind, start = _core.Channel._before_frame(head, len(buffer))
            self.wire.lend(leads_to, kind, start, buffer)

    def operate(self, operation: str, name: Name, waits: bool = False) -> asyncio.Future[tuple[Any, Any]]:
        """Have an operation on an object performed. Returns a future of whether it was done and its value, or of the
        kind and the data of a message."""
        number = self.wire.ask(_core.OPERATIONS[operation], name, (), None, waits)
        future = self._operating[number] = self._loop.create_future()
        return future

    def _operated(self, event: _core.WireEvent) -> None:
        kind, _, number, value, _, done, text, data = event
        future = self._operating.pop(number, None)
        if future is None or future.done():
            return
        if kind == "Failed":
            error, why = text.split("\0", 1)
            is_lost = error == NodeLostError.__name__
            future.set_exception(NodeLostError(why) if is_lost else RemoteError(error, why))
        else:
            future.set_result((value, data) if kind == "Got" else (done, value))

    @serves(WhyGone)
    async def why_gone(self, outbox: Name) -> tuple[str, str]:
        """Return the class and text of the error by which messages in an outbox were lost; empty if none were."""
        node, kind, text, reason = self.wire.why_gone(outbox)
        if not reason:
            return kind, text
        self.probe(node)
        await self.settled(node)
        return NodeLostError.__name__, f"{self.what_happened(node, reason)}; messages in flight to it may be lost"

    # ---- nodes

    def host(self, node: int) -> str:
        return f"node {node} ({self.host_name(node)})" if node in self.members else f"node {node}"

    def host_name(self, node: int) -> str:
        return self.members[node].node.host_name

    def active(self) -> list[int]:
        """Return the nodes that programs may use: all live ones except the spare ones."""
        return [node for node in self.members if node not in self.lost][: max(1, len(self.members) - self.idle)]

    def others(self) -> list[int]:
        return [node for node in self.members if node != self.index and node not in self.lost]

    def leave(self, node: int, reason: str, epoch: int) -> None:
        """Mark a node as lost, by the decision number `epoch`; forget() then lets what waits for it fail."""
        self.lost_at[node], self.lost[node] = epoch, reason

    def forget(self, node: int) -> None:
        """Handle the loss of a node: whatever waits for it fails."""
        reason = self.lost[node]
        self.unreachable.pop(node, None)
        session = self._sessions.pop(node, None)
        pending = session.end_epochs(float("inf")) if session is not None else []
        self.wire.forget(node, reason, self.what_happened(node, reason))
        self.is_broken(node)
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
        self._closed = True
        if self._listener is not None:
            self._listener.close()
        for task in self._connecting.values():
            task.cancel()
        self._loop.remove_reader(self.wire.fileno())
        self.wire.close()
        if self._fabric is not None:
            self._fabric.close()

    def _fail(self, node: int, futures: Iterable[asyncio.Future[msgspec.Raw]], reason: str = "") -> None:
        for future in futures:
            if not future.done():
                future.set_exception(NodeLostError(self.what_happened(node, reason)))

    def what_happened(self, node: int, reason: str) -> str:
        """Return a text that says whether the node is lost or only the connection to it broke, and why."""
        if node in self.lost:
            return f"{self.host(node)} is lost: {self.lost[node]}"
        return f"the connection to {self.host(node)} broke: {reason}"

    def _session(self, node: int) -> Session | None:
        """Return the session with a node of the run that is not lost."""
        if node not in self._sessions and node in self.members and node not in self.lost:
            return self._session_of(node)
        return self._sessions.get(node)

    def _session_of(self, node: int) -> Session:
        session = self._sessions.get(node)
        if session is None:
            send = partial(self.wire.send, node, payload=None, kept=False)
            session = self._sessions[node] = Session(send, partial(self.serve, node))
        return session

    # ---- events of the wire

    def _take(self) -> None:
        for event in self.wire.take():
            try:
                if event[0] == "Control":
                    self._hear(event)
                else:
                    self._handle(event)
            except Exception:
                log.exception("what %s sent cannot be handled", self.host(event[1]))

    def _handle(self, event: _core.WireEvent) -> None:
        kind, node, number, _, _, flag, text, payload = event
        match kind:
            case "Wanted":
                self._connect_to(node)
            case "Made":
                self.unreachable.pop(node, None)
                self._settle(node)  # it is alive
            case "Broken":
                self._broken(node, number, text, flag)
            case "Ended":
                self._ended(node, number, text)
            case "SendBeside":
                self._lanes[number].send(payload)
            case "TakeBeside":
                self._lanes[number].receive(payload, lambda: self.wire.finish_beside(number))
            case "Log":
                (log.error if flag else log.warning)("%s", text)
            case _ if kind in self.on_event:
                self.on_event[kind](event)

    def _hear(self, event: _core.WireEvent) -> None:
        _, node, epoch, _, _, _, data, _ = event
        if node in self.lost:
            return
        try:
            frame = decode_frame(data)
        except msgspec.MsgspecError:
            log.exception("%s sent invalid data", self.host(node))
            self._give_up(node, "what one side sends is invalid")
            return
        # A node that is about to be told who the others are is not a member yet.
        (self._sessions.get(node) or self._session_of(node)).receive(frame, epoch)

    def serve_by(self, serve: Serve) -> None:
        """Have requests handled by another function from now on."""
        self.serve = serve
        for node, session in self._sessions.items():
            session.serve = partial(serve, node)

    def _broken(self, node: int, connection: int, reason: str, is_invalid: bool) -> None:
        lane = self._lanes.pop(connection, None)
        if lane is not None:
            lane.close()
        if node in self.lost or self._closed:
            return
        self._why_broken[node] = reason
        if is_invalid:
            log.error("%s: the connection is closed, %s", self.host(node), reason)
            if self._failed(node, "invalid"):
                self._give_up(node, "what one side sends is invalid")
        self._repair(node)

    def _failed(self, node: int, kind: str) -> bool:
        """Note a failure; return whether there were too many of late."""
        times = self._failures.setdefault((node, kind), deque(maxlen=_MOST_FAILURES))
        times.append(self._loop.time())
        return self._are_many(node, kind)

    def _are_many(self, node: int, kind: str) -> bool:
        times = self._failures.get((node, kind), deque())
        return len(times) == _MOST_FAILURES and self._loop.time() - times[0] < _FAILURES_S

    def _lane_lost(self, node: int, connection: int, reason: str) -> None:
        """Close a connection whose lane failed: what was sent over it is sent again over the next one."""
        if self._failed(node, "lane"):
            log.warning("the way for payloads to node %d fails (%s); they go there over TCP", node, reason)
        self.wire.abort(connection, reason)

    # ---- connections

    def _repair(self, node: int) -> None:
        """Make a connection if there is none, and either side waits for the other."""
        connected, _, waits, _ = self.wire.state(node)
        session = self._sessions.get(node)
        if not connected and (waits or (session is not None and not session.is_idle)):
            self._connect_to(node)

    def _connect_to(self, node: int) -> None:
        if node in self.members and node not in self.lost and node not in self._connecting and not self._closed:
            self._connecting[node] = self._loop.create_task(self._connect(node))

    async def _connect(self, node: int) -> None:
        repairs = self.wire.state(node)[1]
        try:
            failure = await self._attempt(node, _REPAIR_S if repairs else 0)
            if failure and repairs:
                self._give_up(node, self._why_broken.get(node, failure))
            elif failure:
                await self._doubt(node)
                self._cannot_reach(node, f"no connection to {failure}")
        finally:
            self._connecting.pop(node, None)
        if repairs or not failure:  # in the new epoch; or the new connection broke before this task continued
            self._repair(node)

    async def _attempt(self, node: int, seconds: float) -> str:
        """Try to connect for that many seconds, at least once. Returns why it failed; nothing if there is a connection,
        or the node is lost."""
        member, failure, until = self.members[node], "it has no address", self._loop.time() + seconds
        tried, self._tried[node] = self._tried.get(node, float("-inf")), self._loop.time()
        await asyncio.sleep(min(max(tried + _REPAIR_PAUSE_S - self._tried[node], 0), _REPAIR_PAUSE_S))
        while not self.wire.state(node)[0] and node not in self.lost:
            for address in member.addresses:
                try:
                    await self._open(node, address, member.port, seconds or _CONNECT_TIMEOUT)
                    return ""
                except (OSError, ValueError) as error:  # TimeoutError and ssl.SSLError are OSErrors
                    failure = f"{address} port {member.port}: {str(error) or type(error).__name__}"
            if self._loop.time() >= until:
                return failure
            await asyncio.sleep(_REPAIR_PAUSE_S)
        return ""

    async def _open(self, node: int, address: str, port: int, timeout: float) -> None:
        """Make a connection. If it breaks while it is made, try again: the node is alive."""
        for left in reversed(range(_TRIES)):
            connection = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            connection.setblocking(False)
            try:
                async with asyncio.timeout(timeout):
                    await self._loop.sock_connect(connection, (address, port))
                    shaken = await shake_hands(connection, self._client, False, self._hello)
                if shaken.node != node:
                    raise ConnectionAbortedError(f"{self.host(shaken.node)} answered in place of {self.host(node)}")
                self._use(connection, shaken)
                return
            except (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ssl.SSLError):
                connection.close()
                if not left:
                    raise
            except BaseException:
                connection.close()
                raise

    def listen(self, listener: socket.socket) -> None:
        self._listener = Callers(listener, self.admit, self._tell)

    async def admit(self, connection: socket.socket, address: str) -> None:
        """Use a connection that another agent made; refuse any other caller."""
        try:
            async with asyncio.timeout(_HANDSHAKE_WITHIN_S):
                shaken = await shake_hands(connection, self._server, True, self._hello)
        except ConnectionResetError as error:  # as from a node whose run ends
            connection.close()
            log.debug("a connection from %s was closed before it had shown a certificate: %s", address, error)
        except (OSError, ValueError) as error:  # TimeoutError is one
            connection.close()
            why = str(error) or type(error).__name__
            self._tell("a caller from {} was refused: it has no certificate of this run ({})", address, why)
        else:
            self._use(connection, shaken)

    def _hello(self, node: int) -> Hello:
        if node in self.lost:
            self._tell(f"{self.host(node)} connected, but was declared lost ({{}}); it is refused", self.lost[node])
            return Hello(refused=self.lost[node])
        has_lane = self._fabric is not None and not self._are_many(node, "lane")
        return Hello(greeting=self._fabric.greet() if self._fabric is not None and has_lane else None)

    def _use(self, connection: socket.socket, shaken: Shaken) -> None:
        node, own, their = shaken.node, shaken.own, shaken.their
        if their.refused is not None:
            self.serve(node, encode(Outside(their.refused)))
        if own.refused is not None or their.refused is not None or node in self.lost or self._closed:
            connection.close()
            return
        lane: Lane | None = None
        number = 0
        if self._fabric is not None and own.greeting and their.greeting and own.greeting.kind == their.greeting.kind:
            lane = self._fabric.lane(
                own.greeting, their.greeting, self.host(node), lambda reason: self._lane_lost(node, number, reason)
            )
        takes, sends = lane is not None, lane is not None and lane.open()
        number = self.wire.add(connection.detach(), node, own.key, their.key, shaken.early, self._plain, takes, sends)
        if lane is not None:
            self._lanes[number] = lane

    # ---- epochs

    def _give_up(self, node: int, reason: str) -> None:
        """End the epoch of a session whose connection broke: what was in flight is lost."""
        self.wire.end_epoch(node, reason, False)

    def _ended(self, node: int, epoch: int, reason: str) -> None:
        """Handle the beginning of an epoch, for which either side decided. Requests of earlier ones fail once it is
        known whether the node is lost."""
        if node in self.lost:
            return
        session = self._sessions.get(node)
        pending = session.end_epochs(epoch) if session is not None else []
        self.is_broken(node)

        def fail(_: object = None) -> None:
            self._fail(node, pending, reason)
            self.wire.fail(node, epoch, self.what_happened(node, reason))

        if node in self.unreachable:
            fail()
            return
        settled = self.settled(node) if self.wire.state(node)[0] else self._doubt(node)
        settled.add_done_callback(fail)

    def _cannot_reach(self, node: int, reason: str) -> None:
        """Fail all that waits for that node; later requests try again, and so do kept frames."""
        connected, _, _, has_kept = self.wire.state(node)
        if connected or node in self.lost:
            return  # it connected meanwhile, or was declared lost, and nothing waits any more
        self.unreachable[node] = reason
        self.wire.end_epoch(node, reason, True)
        if has_kept:
            self._loop.call_later(_RETRY_S, self._repair, node)
