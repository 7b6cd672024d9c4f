"""Starts processes for groups and for other nodes."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

import msgspec

from dragon.agent.mpi.foreign import without_foreign_variables
from dragon.agent.mpi.jobs import Jobs
from dragon.agent.objects.peers import Peers
from dragon.agent.processes.registry import Registry
from dragon.agent.processes.spawner import Copies, Spawner
from dragon.infrastructure.limits import files_left
from dragon.infrastructure.messages import Instance, Name, Output, Spawn, default_name
from dragon.runtime.handle import Words
from dragon.runtime.protocol.agents import StartFor
from dragon.runtime.protocol.jobs import Part
from dragon.runtime.protocol.processes import EndStartedBy, StartElsewhere
from dragon.runtime.protocol.request import Handler
from dragon.runtime.run import Run, next_puid
from dragon.runtime.spawning import LARGEST_PAYLOAD, RECORD_WORDS

__all__ = ["Processes"]


class Processes:
    """Requests processes from the zygote that no process of this node requested itself."""

    def __init__(self, run: Run, spawner: Spawner, registry: Registry, jobs: Jobs, peers: Peers | None) -> None:
        self._node = run.node
        self._labels = bool(run.label)
        self._spawner = spawner
        self._registry = registry
        self._jobs = jobs
        self._peers = peers
        self._elsewhere: dict[int, set[int]] = {}  # by puid: the nodes on which a process has started others

    def handlers(self) -> list[Handler]:
        """Return the handlers of the requests that this object serves."""
        return [StartElsewhere.served_by(lambda r: self.start(r.spawn))]

    def start(self, spawn: Spawn) -> asyncio.Future[list[tuple[int, Name]]]:
        """Start a process on another node. Returns a future of its puid and the name of its record."""
        if self._peers is None:
            raise ValueError(f"this run has no node {spawn.node}")
        self._elsewhere.setdefault(spawn.parent, set()).add(spawn.node)
        return self._peers.start(spawn.node, [spawn], [Instance(0, spawn.name, spawn.cpus)], followed=True)

    def creator_ended(self, puid: int, killed: bool) -> None:
        """End the processes that a process had started on other nodes; on this node the zygote ends them."""
        for node in self._elsewhere.pop(puid, ()):
            assert self._peers is not None
            self._peers.forward(node, EndStartedBy(puid, killed))

    async def prepare(self, part: Part) -> None:
        """Prepare this node for ranks of an MPI job."""
        await self._jobs.serve(part)

    def start_here(
        self, templates: list[Spawn], instances: list[Instance], descriptors: list[int], part: Part | None = None
    ) -> list[Spawn]:
        """Start processes on this node. Returns the requests with their puids and records, which the zygote keeps
        alive.

        With `part`, which must be prepared, they are the ranks of an MPI job. Raises OSError if too many files are
        open.
        """
        self._see_that_files_are_left(
            [instance.streams or templates[instance.template].streams for instance in instances]
        )
        payloads = [_in_arena(template) for template in templates]
        records = [Words(RECORD_WORDS) for _ in instances]  # before any request: there may not be memory for all
        streams = Copies(descriptors)
        requests = []
        for number, instance in enumerate(instances):
            template = templates[instance.template]
            record = records[number]
            puid = next_puid(self._node)
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
            self._registry.asked(puid, request.parent, request.group)
            self._spawner.start(request, copies, [record, *filter(None, payloads)])
            for fd in inherited:
                os.close(fd)
            requests.append(request)
        return requests

    def _see_that_files_are_left(self, streams: list[list[Output]]) -> None:
        """Raise OSError if the agent cannot open enough files for the output of the processes."""
        needed, left = sum(map(self._files_for, streams)), files_left()
        if needed > left:
            few = f"{len(streams)} processes need {needed} open files of {socket.gethostname()}'s agent, which may open"
            raise OSError(errno.EMFILE, f"{few} {left} more: raise the hard limit (ulimit -Hn)")

    def _files_for(self, streams: list[Output]) -> int:
        kinds = ["tee" if stream.kind == "inherit" and self._labels else stream.kind for stream in streams[1:]]
        return sum({"tee": 2, "pipe": 1, "forward": 1}.get(kind, 0) for kind in kinds)

    def _join(self, request: Spawn, part: Part, rank: int) -> list[int]:
        """Make a process a rank of a job. Returns the descriptors that it inherits for that."""
        joining = self._jobs.join(part, rank, request.puid)
        foreign = without_foreign_variables(request.environment)
        request.environment = {**joining.defaults, **request.environment, **foreign, **joining.environment}
        request.descriptor_variables = list(joining.descriptors)
        return list(joining.descriptors.values())

    def start_for(self, wanted: StartFor) -> list[Spawn]:
        """Start processes for another node. The creator's streams are not here: output is sent to the front end."""
        for template in wanted.templates:
            template.streams = _forwarding(template.streams or [Output(), Output(), Output()])
        for instance in wanted.instances:
            instance.streams = _forwarding(instance.streams)
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        try:
            return self.start_here(wanted.templates, wanted.instances, [null] * 3, wanted.part)
        finally:
            os.close(null)


def _in_arena(template: Spawn) -> Words | None:
    """Move a payload that is too large for a datagram to the arena. Returns the memory that holds it, or None."""
    if len(template.payload) <= LARGEST_PAYLOAD:
        return None
    memory = Words(-(-len(template.payload) // 8))
    memoryview(memory)[: len(template.payload)] = template.payload
    template.payload_in, template.payload_size, template.payload = memory._name(), len(template.payload), b""
    return memory


def _forwarding(streams: list[Output]) -> list[Output]:
    """Return the streams for a process whose creator's streams are on another node."""
    kinds = {"inherit": "forward", "tee": "forward"}
    return [
        msgspec.structs.replace(stream, kind="null" if number == 0 and stream.kind == "inherit" else kind)
        for number, stream in enumerate(streams)
        for kind in [kinds.get(stream.kind, stream.kind)]
    ]
