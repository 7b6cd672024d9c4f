"""This node's part in a run of several nodes: its connections to the others, whose requests and those of the front end
it serves."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

from dragon import _core
from dragon.agent.output.sinks import FrontEndWindow
from dragon.agent.output.streams import write_all
from dragon.agent.processes.starting import Copies
from dragon.agent.services import Services
from dragon.agent.wire.handshake import Fabric
from dragon.agent.wire.links import Links
from dragon.control import Control
from dragon.infrastructure import variables
from dragon.infrastructure.errors import NodeLostError, RunEndedError
from dragon.infrastructure.facts import PUID_NODE_SHIFT
from dragon.infrastructure.membership import Member, Membership, parent_of
from dragon.infrastructure.messages import Spawn, encode, joined
from dragon.infrastructure.signals import NOTICES
from dragon.infrastructure.start_request import RECORD_WORDS, Name, Output
from dragon.infrastructure.structs import msgspec
from dragon.infrastructure.system import code_of_shells
from dragon.runtime import handle as handles
from dragon.runtime import placement as plan
from dragon.runtime.credentials import client_context, server_context
from dragon.runtime.handle import Words
from dragon.runtime.log import runtime_log
from dragon.runtime.nodes import write_nodes
from dragon.runtime.protocol import agents
from dragon.runtime.protocol.objects import MakeObject
from dragon.runtime.protocol.request import BetweenAgents, Caller, OfAll, OfAProcess, Request, decode_answer
from dragon.runtime.protocol.run import EndRun
from dragon.runtime.remote import KINDS
from dragon.runtime.rpc import serves, serves_for
from dragon.runtime.run import next_puid

log = runtime_log("cluster")

_SHUTDOWN_TIMEOUT_S = 5.0
_MEMBERS = encode(agents.Members())
_VERDICT = 5.0  # seconds; as long as a connection may be silent
_POLL_S = 0.02


class Head:
    """Starts the head process, forwards input and signals to it, and reports its end to the front end with `send`."""

    def __init__(self, services: Services, send: Callable[[Request[None]], None]) -> None:
        self._services = services
        self._send = send
        self._puid = 0
        self._input: asyncio.Queue[bytes] = asyncio.Queue()
        self._passing: asyncio.Task[None] | None = None

    @serves(agents.StartHead)
    def _start(
        self, executable: str, arguments: list[str], environment: dict[str, str], folder: str, signals: list[int]
    ) -> None:
        self._puid = next_puid(self._services.run.node)
        record = Words(RECORD_WORDS)
        request = Spawn(
            puid=self._puid,
            record=record._name(),
            name="head",
            executable=executable,
            arguments=arguments,
            environment={name: value for name, value in environment.items() if os.environ.get(name) != value},
            folder=folder,
            signals=signals,
            leave_running=True,
            streams=[Output(), Output("forward"), Output("forward")],
        )
        plan.note_head([executable, *arguments], self._puid)
        reading, stdin = os.pipe2(os.O_CLOEXEC)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.set_blocking(stdin, False)
        os.set_blocking(reading, True)
        try:
            self._services.registry.await_end(self._puid).add_done_callback(self._ended)
            self._services.registry.asked(self._puid)
            self._services.spawner.start(request, [Copies([reading, null, null])], record)
        finally:
            os.close(reading)
            os.close(null)
        self._input = asyncio.Queue()
        self._passing = self._services.loop.create_task(self._pass_input(stdin))
        self._send(agents.WantsInput())

    @serves(agents.SignalHead)
    def signal(self, number: int) -> None:
        self._services.registry.signal(self._puid, number)

    def notice(self, number: int) -> None:
        """Forward a signal that this agent received, if the head process is on this node."""
        if self._puid:
            self.signal(number)

    @serves(agents.Input)
    def input(self, data: bytes) -> None:
        """Write the next piece of its standard input; an empty one closes it."""
        self._input.put_nowait(data)

    async def _pass_input(self, fd: int) -> None:
        try:
            while data := await self._input.get():
                await write_all(fd, data)
                self._send(agents.WantsInput())
        except BrokenPipeError:
            log.debug("the head process reads no more input")
        finally:
            os.close(fd)

    def _ended(self, future: asyncio.Future[int]) -> None:
        if self._passing is not None:
            self._passing.cancel()
        error = future.exception()
        if error is not None:
            number = error.errno if isinstance(error, OSError) else None
            self._send(agents.HeadExited(code_of_shells(number or errno.ENOENT), str(error)))
        else:
            self._send(agents.HeadExited(future.result()))


class Cluster:
    """This node's part in the run: the connections to the other nodes and to the front end, and from begin() on what it
    does for them."""

    _services: Services

    def __init__(
        self, membership: Membership, control: Control, listener: socket.socket, fabric: Fabric | None, *, plain: bool
    ) -> None:
        index, parent = membership.index, membership.parent
        keys = (membership.authority, membership.certificate, membership.key)
        near = {parent_of(index): parent} if parent is not None else {}
        contexts = client_context(*keys), server_context(*keys)
        self._membership, self._control = membership, control
        self._known: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._is_served = asyncio.Event()
        self._front_end_gone = asyncio.Event()
        self.links = Links(index, near, contexts, self._serve_early, fabric, plain=plain)
        self.links.listen(listener)

    async def find_members(self) -> None:
        """Get the list of members, which the first node has from the front end, any other from its parent."""
        members = await self._ask_for_members() if self._membership.parent is not None else self._membership.members
        self.links.members = dict(enumerate(members))
        self.links.idle = self._membership.settings.get("idle", 0)
        self.links.wire.set_nodes(len(members))
        self._known.set_result(msgspec.Raw(encode(members)))  # once for all nodes that ask this one

    async def _ask_for_members(self) -> list[Member]:
        """Return the members from the parent node, or, if that is lost, from the front end."""
        question = agents.Members()
        try:
            return decode_answer(question, await self.links.call(parent_of(self.links.index), question))
        except NodeLostError:
            pass
        try:
            return decode_answer(question, await self._control.ask(question))
        except ConnectionError as error:
            raise RunEndedError("the front end ended before this node had connected to the others") from error

    def _serve_early(self, node: int, body: bytes | msgspec.Raw) -> asyncio.Future[object]:
        return asyncio.ensure_future(self._answer(node, body))

    async def _answer(self, node: int, body: bytes | msgspec.Raw) -> object:
        """Let a request of another node wait, in order, until this node serves it; but tell the members at once."""
        if bytes(body) == _MEMBERS:
            return await asyncio.shield(self._known)
        await self._is_served.wait()
        answer = self._serve(node, body)
        return await answer if isinstance(answer, asyncio.Future) else answer

    def begin(self, services: Services) -> None:
        """Serve what the others request, and have requested already."""
        self._services = services
        self._window = FrontEndWindow(self._control.send, self._membership.settings.get("output_window", 2**20))
        self._head = Head(services, self._control.send)
        for number in NOTICES:  # Slurm sends them to the agents, not to the front end
            services.loop.add_signal_handler(number, self._head.notice, number)
        services.streams.reach_out(self._window, self.links)
        services.table.serve(self, self._head, self._window)
        self._tell_processes()
        self.links.verdict = _VERDICT
        self.links.propose = self._control.send
        self.links.on_event["Left"] = self._client_left
        self.links.is_broken = services.shards.link_broken
        self._is_served.set()
        services.loop.call_soon(self.links.serve_by, self._serve)  # after those that wait, so all are in order
        self._control.serve(self._serve_front_end, services.end)
        self._control.on_lost = self._on_front_end_gone

    async def leave(self) -> None:
        """Send Bye to the front end once everything here has ended, and wait until it acknowledges."""
        self.links.close()
        self._control.send(agents.Bye())
        try:
            async with asyncio.timeout(_SHUTDOWN_TIMEOUT_S):
                await self._front_end_gone.wait()
        except TimeoutError:
            log.warning("the front end did not acknowledge shutdown within %g s", _SHUTDOWN_TIMEOUT_S)

    def end_run(self) -> None:
        self._control.send(EndRun())

    def tell_writing(self) -> None:
        """Request that the front end waits longer at the end, since this node is still writing files."""
        self._control.send(agents.Writing())

    def _tell_processes(self) -> None:
        nodes = [self.links.members[node].node for node in self.links.active()]
        write_nodes(self._services.run.folder, nodes)

    def do(self, request: Request[object], caller: Caller) -> object:
        """Execute a request at the place that it names, or have it executed there. Returns the answer or a future of
        it; encoded if other nodes are involved."""
        if isinstance(request, OfAll):
            return asyncio.ensure_future(self._of_all(request, caller))
        node = request.place()
        if node != self.links.index and node in self.links.members:
            return self.links.reach(node, request)
        return self._services.table.do(request, caller)

    async def _of_all(self, request: Request[object], caller: Caller) -> msgspec.Raw:
        """Return the answers of all nodes, as one list; a node that is lost meanwhile is left out. The answers are
        joined in encoded form, since decoding those of hundreds of nodes would take too long."""
        here = self._services.table.do(request, caller)
        asked = [self.links.reach(node, request) for node in self.links.others()]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found: list[bytes | msgspec.Raw] = [encode(await here if isinstance(here, asyncio.Future) else here)]
        for answer in answers:
            if not isinstance(answer, BaseException):
                found.append(answer)
            elif not isinstance(answer, NodeLostError):
                raise answer
        return joined(found)

    # ---- the front end

    def _serve_front_end(self, body: msgspec.Raw) -> object:
        return self.do(self._services.table.decode(body, BetweenAgents), Caller(self.links.index, os.getpid()))

    def _on_front_end_gone(self, reason: str) -> None:
        self._front_end_gone.set()
        if not self._services.over.done():
            log.warning("the front end is lost (%s); everything on this node ends", reason)
        self._services.end()

    @serves(agents.NodeLost)
    def _on_lost(self, index: int, host_name: str, reason: str, epoch: int) -> None:
        self.links.leave(index, reason, epoch)
        self._tell_processes()  # before their operations fail: who then asks for the nodes does not find this one
        self.links.forget(index)
        self._services.processes.node_lost(index)
        self._services.streams.node_lost(index)
        self._services.shards.node_lost(index, epoch)
        self._services.groups.node_lost(index, f"{host_name} is lost: {reason}")
        for puid, group in self._services.registry.in_groups().items():
            if group >> PUID_NODE_SHIFT == index:
                self._services.registry.signal(puid, signal.SIGKILL)  # the node that followed its group is lost

    @serves(agents.Clear)
    async def _clear(self) -> None:
        loop, registry = self._services.loop, self._services.registry
        self._services.groups.close_all()
        await self._services.spawner.catch_up()
        kill_at = loop.time() + variables.grace()
        registry.signal_all(registry.present(), signal.SIGTERM)
        while present := registry.present():
            if loop.time() > kill_at:
                registry.signal_all(present, signal.SIGKILL)
            await asyncio.sleep(_POLL_S)
        await asyncio.sleep(0)  # the end of the head process is reported first

    # ---- what other nodes ask of this one

    def _serve(self, node: int, body: bytes | msgspec.Raw) -> object:
        table = self._services.table
        return table.do(table.decode(body, (OfAProcess, agents.OfFrontEnd)), Caller(node))

    @serves(agents.Members)
    def _members(self) -> list[Member]:
        return list(self.links.members.values())

    @serves(agents.AnnounceFor)
    def _announce_for(self, node: int, name: Name, count: int) -> None:
        self.links.wire.announce(node, name, count)

    @serves_for(MakeObject)
    def _make(
        self, caller: Caller, node: int, kind: str, given: tuple[Any, ...], options: dict[str, Any], made_at: str
    ) -> Name:
        if node != self.links.index:
            raise ValueError(f"the run has no node {node}")
        if kind not in KINDS:
            raise ValueError(f"an agent cannot create a {kind!r}")
        made = getattr(handles, kind)(*given, **options)
        made._made_at(made_at)
        name: Name = made._name()
        self.links.wire.announce(caller.node, name, 1)
        return name

    def _client_left(self, event: _core.WireEvent) -> None:
        if self._services.shards.serving is not None:
            self._services.shards.serving.client_left(event[1], event[2])

    @serves_for(agents.Outside)
    def _on_outside(self, caller: Caller, reason: str) -> None:
        """End this node, because another node reports that it has been declared lost."""
        if not self._services.over.done():
            log.error(
                "this node was declared lost (%s), as %s reports: it does not belong to the run any more, and its "
                "processes end",
                reason,
                self.links.host(caller.node),
            )
            self._services.end()
