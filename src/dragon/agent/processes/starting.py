"""Starts processes for groups and for other nodes, over the agent's connection to the zygote."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from dragon import _core
from dragon.agent.mpi.jobs import Jobs
from dragon.agent.mpi.segments import without_foreign_variables
from dragon.agent.output.streams import Streams
from dragon.agent.processes.parents import FAREWELL, SYNCHRONISE
from dragon.agent.processes.registry import Event, Failed, Registry, Started, Stream, Synchronised, decode_events
from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.messages import Instance, Spawn, encode
from dragon.infrastructure.start_request import (
    ASKED,
    CODE,
    EXITED,
    FAILED,
    LOST,
    RECORD_WORDS,
    STATUS,
    Name,
    Output,
    default_name,
)
from dragon.infrastructure.structs import msgspec
from dragon.runtime import spawning
from dragon.runtime.log import runtime_log
from dragon.runtime.protocol.agents import KillStarted, Part, StartFor
from dragon.runtime.protocol.objects import CloseAtEnd
from dragon.runtime.protocol.request import Caller
from dragon.runtime.protocol.run import EndStartedBy, StartElsewhere
from dragon.runtime.remote import node_of
from dragon.runtime.rpc import serves_for
from dragon.runtime.run import Run, next_puid

if TYPE_CHECKING:
    from dragon.agent.wire.links import Links

log = runtime_log("agent")

_LARGEST_EVENT = 64 * 1024
_SILENCE_TIMEOUT_S = 1.0  # seconds to wait for the zygote
_FILES = {"tee": 2, "pipe": 1, "forward": 1}  # that the agent opens for a kind of output
_TOO_MANY_FILES = int(socket.MSG_CTRUNC)  # a plain number: operators of flags are slow


class Copies:
    """Copies of descriptors for any number of requests, closed when the last of these has been sent."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self.descriptors: list[int] = []
        for each in descriptors:
            self.descriptors.append(os.dup(each))

    def __del__(self) -> None:
        for each in self.descriptors:
            os.close(each)


class Spawner:
    """Sends requests to the zygote and forwards its events. `gone` is called when the zygote has ended."""

    def __init__(self, requests: socket.socket, events: socket.socket, gone: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._requests = requests
        self._events = events
        self._on_event: Callable[[Event, list[int]], None] = _nobody_listens
        self._gone = gone
        self._is_gone = False
        self._waiting: deque[tuple[bytes, Sequence[Copies]]] = deque()
        # What is kept for requested processes, by puid, and the futures of reported().
        self._kept: dict[int | None, tuple[Any, list[asyncio.Future[None]]]] = {}
        self._turn = asyncio.Lock()  # for one SYNCHRONISE at a time
        self._synchronising: asyncio.Task[None] | None = None  # the next one, which was not sent yet
        self._synchronised = self._loop.create_future()  # the answer to the present one
        requests.setblocking(False)
        events.setblocking(False)
        self._loop.add_reader(events, self._on_events)

    def report_to(self, on_event: Callable[[Event, list[int]], None]) -> None:
        """Call `on_event` with each event, and the descriptors that come with it."""
        self._on_event = on_event

    def start(self, request: Spawn, copies: Sequence[Copies], keep: object = None) -> None:
        """Request the start of a process; `keep` is kept alive until the zygote has started it or failed to."""
        self._kept[request.puid] = keep, []
        self._waiting.append((encode(request), copies))
        self._send_waiting()

    def tell(self, settings: dict[str, Any]) -> None:
        """Send the zygote the settings of the run that this node has joined, before anything is started."""
        self._events.setblocking(True)
        self._events.send(encode(settings))
        self._events.setblocking(False)

    async def catch_up(self, puid: int | None = None) -> None:
        """Wait until all events of the zygote up to now are processed: a client that saw a process start or end must
        find that in the agent. If the process `puid` was requested, it is also started then. Returns earlier if the
        zygote has ended, is ending, or sends nothing for a second, as it may while it imports the main program."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_SILENCE_TIMEOUT_S):
                if self._synchronising is None:
                    self._synchronising = self._loop.create_task(self._synchronise())
                await asyncio.shield(self._synchronising)
                if puid in self._kept:
                    await self.reported(puid)

    async def reported(self, puid: int | None) -> None:
        """Wait until the start of a process is reported, however long its main program is imported; see catch_up()."""
        if puid not in self._kept:
            await self.catch_up(puid)
            return
        reported: asyncio.Future[None] = self._loop.create_future()
        self._kept[puid][1].append(reported)
        await reported

    @property
    def _is_over(self) -> bool:
        """Whether the zygote sends no more events."""
        return self._is_gone or self._events.fileno() < 0

    async def _synchronise(self) -> None:
        """Send SYNCHRONISE for all that wait, and wait for the answer."""
        async with self._turn:
            self._synchronising = None
            if self._is_over:
                return
            self._synchronised = self._loop.create_future()
            try:
                self._events.send(SYNCHRONISE)
            except BrokenPipeError:
                self._on_events()  # the zygote has ended; its last events are still to be read
            await self._synchronised

    def _release_all(self) -> None:
        """Complete all futures, as the zygote sends no more events."""
        for waiting in (self._synchronised, *(each for _, several in self._kept.values() for each in several)):
            _release(waiting)
        self._kept.clear()

    @property
    def waiting(self) -> int:
        """The number of requests that the zygote has not received."""
        return len(self._waiting)

    @property
    def unanswered(self) -> int:
        """The number of requested processes of which the zygote has not reported a start or failure."""
        return len(self._kept)

    def close(self) -> None:
        """Let the zygote end all its descendants, and itself."""
        self._loop.remove_reader(self._events)
        self._loop.remove_writer(self._requests)
        self._waiting.clear()
        try:
            self._events.send(FAREWELL)
        except (BrokenPipeError, ConnectionResetError, BlockingIOError):
            log.debug("the zygote has ended already")
        self._events.close()
        self._release_all()

    def _send_waiting(self) -> None:
        while self._waiting:
            data, copies = self._waiting[0]
            descriptors: list[int] = []
            for each in copies:
                descriptors += each.descriptors
            try:
                spawning.send_request(self._requests, data, descriptors)
            except BlockingIOError:
                self._loop.add_writer(self._requests, self._send_waiting)
                return
            except OSError as error:
                self._end(str(error))
                return
            self._waiting.popleft()
        self._loop.remove_writer(self._requests)

    def _on_events(self) -> None:
        for _ in range(64):
            try:
                data, descriptors, flags, _ = socket.recv_fds(self._events, _LARGEST_EVENT, 8)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if not data:
                self._loop.remove_reader(self._events)
                self._end("its end of the connection was closed")
                return
            if flags & _TOO_MANY_FILES:
                for fd in descriptors:
                    os.close(fd)
                descriptors = []
            self.take(data, descriptors)

    def take(self, data: bytes, descriptors: list[int]) -> None:
        """Handle a packet of events, with the descriptors of the streams in it."""
        for event in decode_events(data):
            if isinstance(event, Synchronised):
                _release(self._synchronised)
                continue
            puid = event.puid if isinstance(event, Started | Failed) else 0  # no process has puid 0
            _, waiting = self._kept.pop(puid, (None, ()))
            count = event.descriptors if isinstance(event, Stream) else 0
            self._on_event(event, descriptors[:count])
            del descriptors[:count]
            for reported in waiting:
                _release(reported)

    def _end(self, reason: str) -> None:
        if not self._is_gone:
            self._is_gone = True
            self._release_all()
            self._gone(reason)


def _nobody_listens(event: Event, descriptors: list[int]) -> None:
    raise AssertionError(f"the zygote sent {event} before any process was requested")


def _release(caught_up: asyncio.Future[None]) -> None:
    if not caught_up.done():
        caught_up.set_result(None)


class Processes:
    """Requests processes from the zygote that no process of this node requested itself."""

    def __init__(
        self, run: Run, spawner: Spawner, registry: Registry, jobs: Jobs, links: Links | None, streams: Streams
    ) -> None:
        self.node = run.node
        self._labels = bool(run.label)
        self._spawner = spawner
        self.registry = registry
        self.jobs = jobs
        self.links = links
        self.streams = streams
        self.elsewhere: dict[int, set[int]] = {}  # by puid: the nodes on which a process has started others
        self._followed: dict[Name, int] = {}  # the nodes of those, by the records that their creators have
        self._to_close: dict[Name, list[int]] = {}  # by their records: descriptors
        # Those that other nodes have started here, by puid: node, and the creator's record.
        self.followers: dict[int, tuple[int, Name]] = {}

    def host(self, node: int) -> str:
        """Return the host name of a node."""
        return self.links.host_name(node) if self.links is not None else socket.gethostname()

    @serves_for(StartElsewhere)
    def _start_elsewhere(self, caller: Caller, spawn: Spawn) -> asyncio.Future[tuple[int, list[int]]]:
        if self.links is None:
            raise ValueError(f"this run has no node {spawn.node}")
        self.elsewhere.setdefault(spawn.parent, set()).add(spawn.node)
        self._followed[spawn.record] = spawn.node
        return asyncio.ensure_future(self._start(spawn, self.streams.keep(caller.descriptors, spawn.node, 1)))

    async def _start(self, spawn: Spawn, kept: list[Name | None]) -> tuple[int, list[int]]:
        failed = True
        try:
            (started,) = await self.start_on(spawn.node, [spawn], [Instance(0, spawn.name, spawn.cpus)], kept)
            failed = started[1][STATUS] == FAILED
            return started
        finally:
            if failed:
                self._followed.pop(spawn.record, None)

    async def start_on(
        self,
        node: int,
        templates: list[Spawn],
        instances: list[Instance],
        kept: list[Name | None],
        part: Part | None = None,
    ) -> list[tuple[int, list[int]]]:
        """Start processes on another node, with what Streams.keep() has `kept`; see StartFor. Raises NodeLostError."""
        assert self.links is not None
        if any(kept):
            templates = [
                msgspec.structs.replace(one, streams=_kept(one.streams or [Output()] * 3, kept)) for one in templates
            ]
            for instance in instances:
                instance.streams = _kept(instance.streams, kept)
        await self.announce_all(node, templates, instances)
        for which, template in enumerate(templates):
            if template.payload_in is not None:  # it is in this node's arena
                payload = bytes(memoryview(_core.Words(template.payload_in)).cast("B")[: template.payload_size])
                templates[which] = msgspec.structs.replace(template, payload=payload, payload_in=None, payload_size=0)
        try:
            return await self.links.ask(node, StartFor(templates, instances, part))
        except NodeLostError:
            # If only the connection broke, they may run there, and nobody learns their puids.
            names, one = [instance.name for instance in instances], templates[0]
            self.links.forward(node, KillStarted(one.group, names, one.record))
            raise

    @serves_for(KillStarted)
    def _kill_started(self, caller: Caller, group: int, names: list[str], record: Name) -> None:
        alone = [puid for puid, creator in self.followers.items() if creator == (caller.node, record)]
        self.registry.signal_all(self.registry.members(group, names) if group else alone, signal.SIGKILL)

    async def announce_all(self, node: int, templates: list[Spawn], instances: list[Instance]) -> None:
        """Keep objects of other nodes alive for processes that start on `node`, whose own stay in the templates."""
        assert self.links is not None
        for which, template in enumerate(templates):
            foreign = [name for name in template.attached if node_of(name) != node] if template.attached else []
            if foreign:
                count = sum(instance.template == which for instance in instances)
                await self.links.announce(node, foreign, count)
                own = [name for name in template.attached if node_of(name) == node]
                templates[which] = msgspec.structs.replace(template, attached=own)

    @serves_for(CloseAtEnd)
    def _close_at_end(self, caller: Caller, record: Name) -> None:
        """Close descriptors once a process that was started on another node has ended; at once if it has."""
        if record[2] >> 8 != self.node:
            raise ValueError("the end of a process of another node is known on its creator's node")
        if record in self._followed:
            self._to_close.setdefault(record, []).extend(map(os.dup, caller.descriptors))

    def ended(self, record: Name, code: int, status: int = EXITED) -> None:
        """Store the end of a process of another node in the record that its creator has."""
        self._followed.pop(record, None)
        with suppress(_core.DestroyedError):  # its creator has ended, or has dropped it
            words = _core.Words(record)
            words[CODE], words[STATUS] = code % 2**64, status
        for fd in self._to_close.pop(record, ()):
            os.close(fd)

    def node_lost(self, node: int) -> None:
        """Store the ends of the processes that were started on a node that is lost."""
        for record in [record for record, where in self._followed.items() if where == node]:
            self.ended(record, 0, LOST)

    def creator_ended(self, puid: int, killed: bool) -> None:
        """End the processes that a process had started on other nodes; on this node the zygote ends them."""
        for node in self.elsewhere.pop(puid, ()):
            assert self.links is not None
            self.links.forward(node, EndStartedBy(puid, killed))

    def start_here(
        self, templates: list[Spawn], instances: list[Instance], descriptors: list[int], part: Part | None = None
    ) -> list[tuple[int, _core.Words]]:
        """Start processes on this node, with `part` as ranks. Returns their puids and records."""
        self._see_that_files_are_left(templates, instances)
        payloads = []
        for template in templates:
            if len(template.payload) > spawning.LARGEST_PAYLOAD:  # too large for a datagram
                memory = _core.Words(-(-len(template.payload) // 8))
                memoryview(memory)[: len(template.payload)] = template.payload
                template.payload_in, template.payload_size, template.payload = (
                    *(memory._name(), len(template.payload)),
                    b"",
                )
                payloads.append(memory)
        records = [_core.Words(RECORD_WORDS) for _ in instances]  # first: there may not be memory for all
        streams, started = Copies(descriptors), []
        for number, (instance, record) in enumerate(zip(instances, records, strict=True)):
            template = templates[instance.template]
            puid = next_puid(self.node)
            request = msgspec.structs.replace(
                template,
                puid=puid,
                record=record._name(),
                name=instance.name or default_name(template.kind, puid),
                cpus=instance.cpus,
                streams=instance.streams or template.streams,
                environment={**template.environment, **instance.environment}
                if instance.environment
                else template.environment,
            )
            inherited = self._join(request, part, part.ranks[number]) if part is not None else []
            copies = [streams, Copies(inherited)] if inherited else [streams]
            # Records are kept until the zygote has attached, which it does before it reports on this process.
            self.registry.asked(puid, request.parent, request.group, request.name)
            self._spawner.start(request, copies, [record, *payloads])
            for fd in inherited:
                os.close(fd)
            started.append((puid, record))
        return started

    def _see_that_files_are_left(self, templates: list[Spawn], instances: list[Instance]) -> None:
        """Raise OSError if the agent cannot open enough files for the output of the processes."""
        needed, left = 0, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - len(os.listdir("/proc/self/fd"))
        for instance in instances:
            for stream in (instance.streams or templates[instance.template].streams)[1:]:
                needed += _FILES.get("tee" if stream.kind == "inherit" and self._labels else stream.kind, 0)
        if needed > left:
            few = f"{len(instances)} processes need {needed} open files of {socket.gethostname()}'s agent"
            raise OSError(errno.EMFILE, f"{few}, which may open {left} more: raise the hard limit (ulimit -Hn)")

    def _join(self, request: Spawn, part: Part, rank: int) -> list[int]:
        """Make a process a rank of a job. Returns the descriptors that it inherits for that."""
        joining = self.jobs.join(part, rank, request.puid)
        foreign = without_foreign_variables(request.environment)
        request.environment = {**joining.defaults, **request.environment, **foreign, **joining.environment}
        request.descriptor_variables = list(joining.descriptors)
        return list(joining.descriptors.values())

    @serves_for(StartFor)
    async def _start_for(
        self, caller: Caller, templates: list[Spawn], instances: list[Instance], part: Part | None
    ) -> list[tuple[int, list[int]]]:
        """Start processes for another node. The creator's streams are not here: output is sent to the front end."""
        if part is not None:
            await self.jobs.serve(part)
        for template in templates:
            template.streams = template.streams or [Output(), Output(), Output()]
        several: tuple[Spawn | Instance, ...] = (*templates, *instances)
        for each in several:
            for number, stream in enumerate(each.streams):
                if stream.kind in ("inherit", "tee"):
                    each.streams[number] = Output("forward" if number or stream.kind == "tee" else "null")
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        records = [template.record if template.record[0] else None for template in templates]
        try:
            started = self.start_here(templates, instances, [null] * 3, part)
        finally:
            os.close(null)
        result = []
        for (puid, record), instance in zip(started, instances, strict=True):
            words: list[int] = []
            if (theirs := records[instance.template]) is not None:
                self.followers[puid] = caller.node, theirs
                await self._spawner.reported(puid)
                words = [record[i] for i in range(RECORD_WORDS)]
                if words[STATUS] == ASKED:
                    raise RuntimeError("the node starts no more processes, as its run ends")
            result.append((puid, words))
        return result


def _kept(streams: list[Output], kept: list[Name | None]) -> list[Output]:
    """Return the streams with a kept descriptor, where there is one, in place of an inherited one."""
    return [
        Output("forward", channel=name) if name is not None and stream.kind in ("inherit", "tee") else stream
        for stream, name in zip(streams, kept, strict=False)
    ]
