"""A run of several nodes, as the agent of one of them takes part in it: what the front end and the others ask of it."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from dragon.agent.head import Head
from dragon.agent.objects.peers import Peers
from dragon.agent.output.to_front_end import Output
from dragon.agent.services import Services
from dragon.agent.wire.bulk import Fabric
from dragon.agent.wire.direct import Direct
from dragon.agent.wire.links import OUTSIDE, Links
from dragon.agent.wire.listener import Listener
from dragon.agent.wire.part import Part
from dragon.agent.wire.responses import then, value_of
from dragon.control.connection import Control
from dragon.infrastructure.errors import NodeLostError, RunEndedError
from dragon.infrastructure.facts import node_of_puid
from dragon.infrastructure.membership import Member, Membership, parent_of
from dragon.infrastructure.messages import Name, as_name, encode, joined
from dragon.infrastructure.signals import NOTICES
from dragon.runtime.credentials import client_context, server_context
from dragon.runtime.handle import Words
from dragon.runtime.log import runtime_log
from dragon.runtime.nodes import write_nodes

__all__ = ["Cluster"]

log = runtime_log("cluster")

_GOODBYE = 5.0
_VERDICT = 5.0  # as long as a connection may be silent
_GRACE = 3.0
_LOOK_AGAIN = 0.02
# What all nodes answer, each with a list.
_TELEMETRY = ("start", "stop", "names", "kinds", "query", "lifetimes", "families", "lines")
_EVERYWHERE = {f"telemetry.{name}" for name in _TELEMETRY} | {"registry.processes", "named_groups.numbers"}


class Cluster:
    """This node's place in the run: it meets the others, and does what they and the front end ask."""

    def __init__(
        self, membership: Membership, control: Control, listener: socket.socket, direct: Direct, fabric: Fabric
    ) -> None:
        self.index = membership.index
        self._known: asyncio.Future[list[Member]] = asyncio.get_running_loop().create_future()
        # What other nodes asked and sent before this one serves, in order; None once it does.
        self._before: list[Callable[[], object]] | None = []
        self._membership = membership
        self._control = control
        self._socket = listener
        self._direct = direct
        self._fabric = fabric
        self._early: list[tuple[str, dict[str, Any]]] = []  # what the front end said before the members were known
        # Records of processes that another node had started, until the one there that follows them is attached.
        self._records: dict[Name, tuple[int, Words]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._gone = asyncio.Event()

    async def meet(self) -> None:
        """Learn who belongs to the run. Raises RunEndedError where it has ended meanwhile."""
        membership = self._membership
        keys = (membership.authority, membership.certificate, membership.key)
        near = {parent_of(self.index): membership.parent} if membership.parent is not None else {}
        client = client_context(*keys)
        callbacks = (self._serve, self._hear, self._on_messages, self._on_link_broken)
        links = Links(self.index, near, client, *callbacks, fabric=self._fabric)
        self._listener = Listener(self._socket, server_context(*keys), links.accept, self._direct)
        members = membership.members
        if near:
            try:
                told, _ = await links.call(parent_of(self.index), "members", {})
            except NodeLostError:
                told = await self._ask_front_end()
            members = msgspec.convert(told, list[Member])
        links.members = dict(enumerate(members))
        self.peers = Peers(self.index, members, links, membership.settings.get("idle", 0))
        self._known.set_result(members)

    async def _ask_front_end(self) -> Any:
        """The members of the run, where the node that was to tell is gone: lost, or because the run has ended."""
        self._control.send("members")
        while True:
            try:
                kind, values = await self._control.receive()
            except ConnectionError as error:
                raise RunEndedError("the front end was gone before this node had met the others") from error
            if kind == "end":
                raise RunEndedError("the run ended before this node had met the others")
            if kind == "members":
                return values["members"]
            self._early.append((kind, values))

    def open(self, services: Services, ask: Callable[[str, dict[str, Any]], Awaitable[Any]]) -> None:
        """Begin to serve, and to do what the front end says. `ask` answers its questions."""
        self._services = services
        self._ask = ask
        self.output = Output(self._control.send, self._membership.settings.get("output_window", 2**20))
        self.head = Head(services, self._control.send)
        for number in NOTICES:  # Slurm sends them to the agents, and not to the front end
            services.loop.add_signal_handler(number, self.head.notice, number)
        services.streams.reach_out(self.output, self.peers.links.call)
        self._tell_processes()
        self.peers.links.verdict = _VERDICT
        self.peers.propose = lambda proposal: self._control.send("propose", **proposal)
        before, self._before = self._before or [], None
        for do in before:
            try:
                do()
            except Exception:
                log.exception("what another node said while this one began makes no sense")
        for kind, values in self._early:
            self._on_message(kind, values)
        self._control.on_message = self._on_message
        self._control.on_lost = self._on_front_end_gone

    async def leave(self) -> None:
        """Say goodbye to the front end once everything here has ended."""
        self._listener.close()
        self.peers.links.close()
        self._fabric.close()
        self._control.send("bye")
        try:
            async with asyncio.timeout(_GOODBYE):
                await self._gone.wait()
        except TimeoutError:
            log.warning("the front end did not acknowledge shutdown within %g s", _GOODBYE)

    def end_run(self) -> None:
        """Have the front end end the run, on all nodes."""
        self._control.send("end_run")

    def tell_writing(self) -> None:
        """Have the front end wait longer: what this node has to write takes its time."""
        self._control.send("writing")

    def _tell_processes(self) -> None:
        nodes = [self.peers.members[node].node for node in self.peers.active()]
        write_nodes(self._services.run.folder, nodes)

    # ---- the front end

    def _on_message(self, kind: str, values: dict[str, Any]) -> None:
        handlers: dict[str, Callable[..., None]] = {
            "start_head": self.head.start,
            "signal": self.head.signal,
            "input": self.head.input,
            "written": self.output.written,
            "lost": self._on_lost,
            "decided": self._services.shards.decided,
            "ask": lambda **question: self._soon(self._answer(**question)),
            "clear": lambda: self._soon(self._clear()),
            "end": self._services.end,
        }
        if kind in handlers:
            handlers[kind](**values)
        else:
            log.warning("the front end sent %r, which means nothing here", kind)

    def _on_front_end_gone(self, reason: str) -> None:
        self._gone.set()
        if not self._services.over.done():
            log.warning("the front end is gone (%s); everything on this node ends", reason)
            self._services.end()

    def _on_lost(self, index: int, host_name: str, reason: str, epoch: int) -> None:
        self.peers.leave(index, reason, epoch)
        self._tell_processes()
        for name in [name for name, (node, _) in self._records.items() if node == index]:
            del self._records[name]
        self._services.shards.node_lost(index, epoch)
        self._services.groups.node_lost(index, f"{host_name} is gone: {reason}")
        for puid, group in self._services.registry.in_groups().items():
            if self._services.groups.home_of(group) == index:
                self._services.registry.signal(puid, signal.SIGKILL)  # nobody follows its group any more

    async def _clear(self) -> None:
        """End every process of this node."""
        loop, registry = self._services.loop, self._services.registry
        self._services.groups.close_all()
        await self._services.spawner.catch_up()
        kill_at = loop.time() + _GRACE
        registry.signal_all(registry.present(), signal.SIGTERM)
        while present := registry.present():
            if loop.time() > kill_at:
                registry.signal_all(present, signal.SIGKILL)
            await asyncio.sleep(_LOOK_AGAIN)
        await asyncio.sleep(0)  # the end of the head process is told first
        self._control.send("cleared")

    def _soon(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- what processes of this node ask of agents; what they ask of objects is in `remote`

    def route(self, operation: str, arguments: dict[str, Any]) -> asyncio.Future[Any] | None:
        """The answer of another node, if this one has none of its own."""
        if operation in _EVERYWHERE:
            return asyncio.ensure_future(self._of_all(operation, arguments))
        if isinstance(arguments.get("identifier"), str):
            return asyncio.ensure_future(self._find(operation, arguments))
        if "identifier" in arguments:
            node = node_of_puid(arguments["identifier"])
        elif operation.startswith(("groups.", "named_groups.")) and "number" in arguments:
            node = self._services.groups.home_of(arguments["number"])
        elif operation.startswith(("shards.", "named_objects.")) and "node" in arguments:
            node = arguments["node"]
        else:
            return None
        if node == self.index or not 0 <= node < len(self.peers.members):
            return None
        return self.peers.ask(node, operation, arguments)

    async def _of_all(self, operation: str, arguments: dict[str, Any]) -> msgspec.Raw:
        """What all nodes answer, one list; a node that is lost meanwhile is as if it had not been asked.

        The answers are put together as they came, which for hundreds of nodes is all that one has time for.
        """
        request = {"operation": operation, "arguments": arguments}
        here = self._do(self.index, "list", request)
        asked = [then(self.peers.links.call(node, "list", request), value_of) for node in self.peers.others()]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        answers.insert(0, await here if isinstance(here, asyncio.Future) else here)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, NodeLostError):
                raise answer
        return joined([answer for answer in answers if not isinstance(answer, BaseException)])

    async def _answer(self, number: int, operation: str, arguments: dict[str, Any]) -> None:
        """Answer what the front end has asked."""
        try:
            value = await self._ask(operation, arguments)
        except Exception as error:
            self._control.send("answer", number=number, error=str(error))
        else:
            self._control.send("answer", number=number, value=value)

    async def _find(self, operation: str, arguments: dict[str, Any]) -> Any:
        """The answer of the node that has what is called so; a process that runs before one that has ended."""
        part, _, method = operation.partition(".")
        if part == "registry":
            found = await self._process_named(arguments["identifier"])
            if method == "query":
                return found
            return await self.peers.ask(
                node_of_puid(found["puid"]), operation, {**arguments, "identifier": found["puid"]}
            )
        try:
            return self._services.do(part, method, arguments, [])
        except LookupError as nowhere:
            asked = [self.peers.ask(node, operation, arguments) for node in self.peers.others()]
            for answer in await asyncio.gather(*asked, return_exceptions=True):
                if not isinstance(answer, BaseException):
                    return answer
            raise nowhere

    async def _process_named(self, name: str) -> dict[str, Any]:
        """What a registry knows of the process that was last called so. Raises LookupError."""
        nodes = [self.index, *self.peers.others()]
        asked = [self.peers.ask(node, "registry.query", {"identifier": name}) for node in nodes]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = [answer for answer in answers if not isinstance(answer, BaseException)]
        if not found:
            raise LookupError(f"the run has no process {name!r}")
        return max(found, key=lambda known: (known["code"] is None, known["started"]))

    # ---- what other nodes ask of this one

    def _serve(
        self, node: int, operation: str, arguments: dict[str, Any], payload: Any, respond: Callable[..., None]
    ) -> Callable[[], Any] | None:
        if operation == "members":
            self._known.add_done_callback(lambda known: respond(known.result()))
            return None
        if self._before is not None:
            self._before.append(lambda: self._serve(node, operation, arguments, payload, respond))
            return None
        try:
            if operation == "object":
                if arguments["method"] == "_attach":
                    respond = self._forget_record_then(as_name(arguments["name"]), respond)
                return self.peers.guests.serve((node, arguments["pid"]), arguments, payload, respond)
            value = self._do(node, operation, arguments)
        except Exception as error:
            respond(None, b"", error)
            return None
        if not isinstance(value, asyncio.Future):
            respond(value)
            return None

        def done(future: asyncio.Future[Any]) -> None:
            if not future.cancelled():
                error = future.exception()
                respond(None, b"", error) if error is not None else respond(future.result())

        value.add_done_callback(done)
        return value.cancel

    def _forget_record_then(self, name: Name, respond: Callable[..., None]) -> Callable[..., None]:
        def attached(*answer: Any) -> None:
            self._records.pop(name, None)
            respond(*answer)

        return attached

    def _on_messages(self, node: int, flow: int, kind: int, payload: Any) -> asyncio.Future[None] | None:
        if self._before is not None:
            self._before.append(lambda: self._on_messages(node, flow, kind, payload))
            return None
        return self.peers.flows.received(node, flow, kind, payload)

    def _on_link_broken(self, node: int, reason: str) -> None:
        if self._before is not None:
            return
        self.peers.outboxes.broken(node, reason)
        self._services.shards.link_broken(node)

    def _do(self, node: int, operation: str, arguments: dict[str, Any]) -> Any:
        if operation == "operation":
            part, _, name = arguments["operation"].partition(".")
            return self._services.do(part, name, arguments["arguments"], [])
        if operation == "list":
            value = self._do(node, "operation", arguments)
            return then(value, encode) if isinstance(value, asyncio.Future) else encode(value)
        if operation == "start":
            return asyncio.ensure_future(self._start_for(node, **arguments))
        if operation == "announce":
            return self.peers.guests.announce(arguments["node"], tuple(arguments["name"]), arguments["count"])
        if operation == "make":
            return self.peers.guests.make(**arguments)
        if operation == "flow_open":
            return self.peers.flows.open(node, arguments["number"], as_name(arguments["name"]))
        raise ValueError(f"an agent knows no operation {operation!r}")

    async def _start_for(
        self, node: int, templates: list[Any], instances: list[Any], followed: bool, part: Any
    ) -> list[tuple[int, Name]]:
        job = msgspec.convert(part, Part | None)
        if job is not None:
            await self._services.processes.prepare(job)
        started = self._services.processes.start_for(templates, instances, job)
        for request in started if followed else ():
            self._records[request.record] = node, Words._attached(request.record)
        return [(request.puid, request.record) for request in started]

    def _on_outside(self, node: int, reason: str) -> None:
        """Another node says that this one does not belong to the run any more."""
        if not self._services.over.done():
            log.error(
                "this node was declared lost (%s), as %s says: it is no part of the run any more, and what runs here "
                "ends",
                reason,
                self.peers.links.host(node),
            )
            self._services.end()

    def _hear(self, node: int, operation: str, arguments: dict[str, Any], payload: Any) -> None:
        if self._before is not None:
            self._before.append(lambda: self._hear(node, operation, arguments, payload))
        elif operation == OUTSIDE:
            self._on_outside(node, **arguments)
        else:
            self._notice(node, operation, arguments)

    def _notice(self, node: int, operation: str, arguments: dict[str, Any]) -> None:
        if operation == "left":
            self.peers.guests.left((node, arguments["pid"]))
            self._services.shards.client_left(node, arguments["pid"])
        elif operation == "release":
            self.peers.guests.release((node, arguments["pid"]), tuple(arguments["name"]))
        elif operation == "link_broken":
            self._on_link_broken(node, arguments["reason"])
        elif operation == "flow_taken":
            self.peers.outboxes.taken(node, **arguments)
        elif operation == "flow_failed":
            self.peers.outboxes.failed(node, **arguments)
        elif operation == "flow_orphan":
            self.peers.flows.orphan(node, **arguments)
        elif operation == "flow_cut":
            self.peers.flows.cut(node, **arguments)
        elif operation == "flow_close":
            self.peers.flows.close(node, **arguments)
        elif operation == "kill":
            self._services.registry.signal(**arguments)
        elif operation == "group":
            for event in arguments["events"]:
                self._services.groups.on_event(**event)
        else:
            log.warning("%s sent %r, which means nothing here", self.peers.links.host(node), operation)
