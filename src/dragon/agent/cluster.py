"""A run of several nodes, as the agent of one of them takes part in it."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from dragon.agent.bulk import Fabric
from dragon.agent.control import Control
from dragon.agent.direct import Direct
from dragon.agent.flows import Flows
from dragon.agent.guests import Guests
from dragon.agent.head import Head
from dragon.agent.links import Links
from dragon.agent.listener import Listener
from dragon.agent.mpi.part import Part
from dragon.agent.outboxes import Outboxes
from dragon.agent.output import Output
from dragon.agent.processes import Instance
from dragon.agent.remote_objects import RemoteObjects
from dragon.agent.responses import then, value_of
from dragon.infrastructure.errors import NodeLostError, RunEndedError
from dragon.infrastructure.facts import node_of_puid
from dragon.infrastructure.membership import Member, Membership, parent_of
from dragon.infrastructure.messages import Name, Spawn, as_name, encode, joined
from dragon.infrastructure.signals import NOTICES
from dragon.runtime.credentials import client_context, server_context
from dragon.runtime.handle import Channel, Words
from dragon.runtime.log import runtime_log
from dragon.runtime.nodes import write_nodes
from dragon.runtime.remote import node_of

if TYPE_CHECKING:
    from dragon.agent.server import Agent

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
    """The other nodes and the front end."""

    def __init__(
        self, membership: Membership, control: Control, listener: socket.socket, direct: Direct, fabric: Fabric
    ) -> None:
        self.index = membership.index
        self.members = membership.members
        self.lost: dict[int, str] = {}
        self._known: asyncio.Future[list[Member]] = asyncio.get_running_loop().create_future()
        self._opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
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
        callbacks = (self._serve, self._notice, self._on_messages, self._on_link_broken)
        self.links = Links(self.index, near, client, *callbacks, fabric=self._fabric)
        self._listener = Listener(self._socket, server_context(*keys), self.links.accept, self._direct)
        if near:
            try:
                told, _ = await self.links.call(parent_of(self.index), "members", {})
            except NodeLostError:
                told = await self._ask_front_end()
            self.members = msgspec.convert(told, list[Member])
        self.links.members = dict(enumerate(self.members))
        self._known.set_result(self.members)

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

    def open(self, agent: Agent) -> None:
        """Begin to serve, and to do what the front end says."""
        self._agent = agent
        self.guests = Guests(agent.loop)
        self.outboxes = Outboxes(self.links)
        self.remote = RemoteObjects(self)
        self.flows = Flows(self.links.notify)
        self.output = Output(self._control.send, self._membership.settings.get("output_window", 2**20))
        self.head = Head(agent, self._control.send)
        for number in NOTICES:  # Slurm sends them to the agents, and not to the front end
            agent.loop.add_signal_handler(number, self.head.notice, number)
        agent.streams.reach_out(self.output, self.links.call)
        self._tell_processes()
        self.links.verdict = _VERDICT
        self._opened.set_result(None)
        for kind, values in self._early:
            self._on_message(kind, values)
        self._control.on_message = self._on_message
        self._control.on_lost = self._on_front_end_gone

    async def leave(self) -> None:
        """Say goodbye to the front end once everything here has ended."""
        self._listener.close()
        self.links.close()
        self._fabric.close()
        self._control.send("bye")
        try:
            async with asyncio.timeout(_GOODBYE):
                await self._gone.wait()
        except TimeoutError:
            log.warning("the front end did not take leave")

    def end_run(self) -> None:
        """Have the front end end the run, on all nodes."""
        self._control.send("end_run")

    def tell_writing(self) -> None:
        """Have the front end wait longer: what this node has to write takes its time."""
        self._control.send("writing")

    def host(self, node: int) -> str:
        """The name of a node."""
        return self.members[node].node.host_name

    def _tell_processes(self) -> None:
        write_nodes(self._agent.run.folder, [self.members[node].node for node in self.active()])

    # ---- the front end

    def _on_message(self, kind: str, values: dict[str, Any]) -> None:
        handlers: dict[str, Callable[..., None]] = {
            "start_head": self.head.start,
            "signal": self.head.signal,
            "input": self.head.input,
            "written": self.output.written,
            "lost": self._on_lost,
            "ask": lambda **question: self._soon(self._answer(**question)),
            "clear": lambda: self._soon(self._clear()),
            "end": self._agent.end,
        }
        if kind in handlers:
            handlers[kind](**values)
        else:
            log.warning("the front end sent %r, which means nothing here", kind)

    def _on_front_end_gone(self, reason: str) -> None:
        self._gone.set()
        if not self._agent.over.done():
            log.warning("the front end is gone (%s); everything on this node ends", reason)
            self._agent.end()

    def _on_lost(self, index: int, host_name: str, reason: str) -> None:
        self.lost[index] = reason
        self._tell_processes()
        self.links.forget(index, reason)
        self.guests.node_left(index)
        self.flows.node_left(index)
        for name in [name for name, (node, _) in self._records.items() if node == index]:
            del self._records[name]
        self._agent.shards.node_lost(index)
        self._agent.groups.node_lost(index, f"{host_name} is gone: {reason}")
        for known in self._agent.registry.living():
            if known.group and self._agent.groups.home_of(known.group) == index:
                self._agent.registry.kill(known.puid)  # nobody follows its group any more

    async def _clear(self) -> None:
        """End every process of this node."""
        loop, registry = self._agent.loop, self._agent.registry
        self._agent.groups.close_all()
        self._agent.spawner.catch_up()
        kill_at = loop.time() + _GRACE
        for known in registry.living():
            registry.kill(known.puid, signal.SIGTERM)
        while living := registry.living():
            if loop.time() > kill_at:
                for known in living:
                    registry.kill(known.puid)
            await asyncio.sleep(_LOOK_AGAIN)
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
            node = self._agent.groups.home_of(arguments["number"])
        elif operation.startswith("shards.") and "node" in arguments:
            node = arguments["node"]
        else:
            return None
        if node == self.index or not 0 <= node < len(self.members):
            return None
        return self.ask(node, operation, arguments)

    def ask(self, node: int, operation: str, arguments: dict[str, Any]) -> asyncio.Future[Any]:
        """What another node's registry, groups or shards answer."""
        request = {"operation": operation, "arguments": arguments}
        return then(self.links.call(node, "operation", request), value_of)

    def forward(self, node: int, operation: str, arguments: dict[str, Any]) -> None:
        """Have another node do something, if it is still there."""
        self.ask(node, operation, arguments).add_done_callback(lambda future: future.cancelled() or future.exception())

    def active(self) -> list[int]:
        """The nodes that programs may use: all that are there, but for as many as are to stay idle."""
        active = max(1, len(self.members) - self._membership.settings.get("idle", 0))
        return [node for node in range(len(self.members)) if node not in self.lost][:active]

    def _others(self) -> list[int]:
        return [node for node in range(len(self.members)) if node != self.index and node not in self.lost]

    async def _of_all(self, operation: str, arguments: dict[str, Any]) -> msgspec.Raw:
        """What all nodes answer, one list; a node that is lost meanwhile is as if it had not been asked.

        The answers are put together as they came, which for hundreds of nodes is all that one has time for.
        """
        request = {"operation": operation, "arguments": arguments}
        here = self._do(self.index, "list", request)
        asked = [then(self.links.call(node, "list", request), value_of) for node in self._others()]
        answers = [here, *await asyncio.gather(*asked, return_exceptions=True)]
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, NodeLostError):
                raise answer
        return joined([answer for answer in answers if not isinstance(answer, BaseException)])

    async def _answer(self, number: int, operation: str, arguments: dict[str, Any]) -> None:
        """Answer what the front end has asked."""
        try:
            value = await self._agent.ask(operation, arguments)
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
            return await self.ask(node_of_puid(found["puid"]), operation, {**arguments, "identifier": found["puid"]})
        try:
            return self._agent.handle_here(part, method, arguments, [])
        except LookupError as nowhere:
            asked = [self.ask(node, operation, arguments) for node in self._others()]
            for answer in await asyncio.gather(*asked, return_exceptions=True):
                if not isinstance(answer, BaseException):
                    return answer
            raise nowhere

    async def _process_named(self, name: str) -> dict[str, Any]:
        """What a registry knows of the process that was last called so. Raises LookupError."""
        nodes = [self.index, *self._others()]
        asked = [self.ask(node, "registry.query", {"identifier": name}) for node in nodes]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        found = [answer for answer in answers if not isinstance(answer, BaseException)]
        if not found:
            raise LookupError(f"the run has no process {name!r}")
        return max(found, key=lambda known: (known["code"] is None, known["started"]))

    def kill(self, puid: int, number: int) -> None:
        """Send a signal to a process of another node."""
        self.links.notify(node_of_puid(puid), "kill", {"puid": puid, "number": number})

    def tell_group(self, home: int, kind: str, event: dict[str, Any]) -> None:
        """Tell the node that follows a group what happened to a member here."""
        if home not in self.lost:
            self.links.notify(home, "group", {"kind": kind, **event})

    def start(
        self,
        node: int,
        templates: list[Spawn],
        instances: list[Instance],
        followed: bool = False,
        part: Part | None = None,
    ) -> asyncio.Future[list[tuple[int, Name]]]:
        """Start processes on another node; their puids and the names of their records, which the caller attaches to if
        they are `followed`. Fails with NodeLostError where it is gone."""
        return asyncio.ensure_future(self._start(node, templates, instances, followed, part))

    async def _start(
        self, node: int, templates: list[Spawn], instances: list[Instance], followed: bool, part: Part | None
    ) -> list[tuple[int, Name]]:
        await self.announce_all(node, templates, instances)
        request = {
            "templates": [_for_another_node(template) for template in templates],
            "instances": instances,
            "followed": followed,
            "part": part,
        }
        started: list[tuple[int, Name]] = (await self.links.call(node, "start", request))[0]
        return started

    async def announce_all(self, node: int, templates: list[Spawn], instances: list[Instance]) -> None:
        """Objects of other nodes live until the processes that are about to be started on that one attach to them.

        Of what the templates are attached to, the node's own objects are left.
        """
        for which, template in enumerate(templates):
            count = sum(instance.template == which for instance in instances)
            foreign = [name for name in template.attached if node_of(name) != node]
            if foreign:
                await self.announce(node, foreign, count)
                own = [name for name in template.attached if node_of(name) == node]
                templates[which] = msgspec.structs.replace(template, attached=own)

    async def announce(self, node: int, names: list[Name], count: int = 1) -> None:
        """These objects live until so many processes of a node have attached to them."""
        for name in names:
            if node_of(name) == self.index:
                self.guests.announce(node, name, count)
            else:
                await self.links.call(node_of(name), "announce", {"node": node, "name": name, "count": count})

    # ---- what other nodes ask of this one

    def _serve(
        self, node: int, operation: str, arguments: dict[str, Any], payload: Any, respond: Callable[..., None]
    ) -> Callable[[], Any] | None:
        if operation == "members":
            self._known.add_done_callback(lambda known: respond(known.result()))
            return None
        if not self._opened.done():
            self._opened.add_done_callback(lambda _: self._serve(node, operation, arguments, payload, respond))
            return None
        try:
            if operation == "object":
                cancel = self.guests.serve((node, arguments["pid"]), arguments, payload, respond)
                if arguments["method"] == "_attach":
                    self._records.pop(as_name(arguments["name"]), None)
                return cancel
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

    def _on_messages(self, node: int, flow: int, kind: int, payload: Any) -> None:
        self.flows.received(node, flow, kind, payload)

    def _on_link_broken(self, node: int, reason: str) -> None:
        if not self._opened.done():
            return
        self.outboxes.broken(node, reason)
        self._agent.shards.link_broken(node)

    def _do(self, node: int, operation: str, arguments: dict[str, Any]) -> Any:
        if operation == "operation":
            part, _, name = arguments["operation"].partition(".")
            return self._agent.handle_here(part, name, arguments["arguments"], [])
        if operation == "list":
            return encode(self._do(node, "operation", arguments))
        if operation == "start":
            return asyncio.ensure_future(self._start_for(node, **arguments))
        if operation == "announce":
            return self.guests.announce(arguments["node"], tuple(arguments["name"]), arguments["count"])
        if operation == "make_channel":
            channel = Channel(arguments["capacity"], maker=arguments["maker"])
            self.guests.announce(arguments["node"], channel._name(), 1)
            return channel._name()
        if operation == "flow_open":
            return self.flows.open(node, as_name(arguments["name"]))
        raise ValueError(f"an agent knows no operation {operation!r}")

    async def _start_for(
        self, node: int, templates: list[Any], instances: list[Any], followed: bool, part: Any
    ) -> list[tuple[int, Name]]:
        job = msgspec.convert(part, Part | None)
        if job is not None:
            await self._agent.processes.prepare(job)
        started = self._agent.processes.start_for(templates, instances, job)
        for request in started if followed else ():
            self._records[request.record] = node, Words._attached(request.record)
        return [(request.puid, request.record) for request in started]

    def _notice(self, node: int, operation: str, arguments: dict[str, Any], payload: Any) -> None:
        if not self._opened.done():
            self._opened.add_done_callback(lambda _: self._notice(node, operation, arguments, payload))
        elif operation == "left":
            self.guests.left((node, arguments["pid"]))
            self._agent.shards.client_left(node, arguments["pid"])
        elif operation == "release":
            self.guests.release((node, arguments["pid"]), tuple(arguments["name"]))
        elif operation == "link_broken":
            self._on_link_broken(node, arguments["reason"])
        elif operation == "flow_taken":
            self.outboxes.taken(node, **arguments)
        elif operation == "flow_failed":
            self.outboxes.failed(node, **arguments)
        elif operation == "flow_close":
            self.flows.close(node, **arguments)
        elif operation == "kill":
            self._kill(**arguments)
        elif operation == "group":
            self._agent.groups.on_event(**arguments)
        else:
            log.warning("%s sent %r, which means nothing here", self.links.host(node), operation)

    def _kill(self, puid: int, number: int) -> None:
        """Send a signal to a process that another node has had started here; once it is, where it is not yet."""
        if self._agent.spawner.awaits(puid):
            self._agent.loop.call_later(_LOOK_AGAIN, self._kill, puid, number)
        elif self._agent.registry.knows(puid):
            self._agent.registry.kill(puid, number)


def _for_another_node(template: Spawn) -> Spawn:
    """The request with its payload in it, where that is in this node's arena."""
    payload = template.payload
    if template.payload_in is not None:
        memory = Words._attached(template.payload_in)
        payload = bytes(memoryview(memory).cast("B")[: template.payload_size])
    return msgspec.structs.replace(template, payload=payload, payload_in=None, payload_size=0)
