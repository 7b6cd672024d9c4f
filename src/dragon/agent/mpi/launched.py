"""Ranks that find each other through what the site's launcher provides: one node's side of such a job.

The launcher starts a relay for each rank, which passes on what it was given. The rank itself is started like any other
process.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

from dragon.agent.mpi.job import JobOverError, Joining, Way
from dragon.agent.mpi.relay import SIZE, address, received, user_of
from dragon.agent.mpi.segments import is_foreign
from dragon.infrastructure.gpus import GPU_VARIABLES
from dragon.runtime.protocol.jobs import LaunchEnd, Part

# The keys of the exchanges between the nodes of a job and the node that runs the launcher, in order.
GIVEN = "what the launcher is given"
COME = "all relays have come"
LAUNCHER = -1
"""Stands for the launcher among the nodes that exchange something."""

_MOST_DESCRIPTORS = 32
_CHUNK = 64 * 1024
# Variables of the relay itself; those of GPUs are set from the node, or from the rank's policy.
_OF_A_RELAY = {"HOSTNAME", "OLDPWD", "PWD", "SHLVL", "SLURM_HOSTFILE", "TMPDIR", "_"}.union(*GPU_VARIABLES.values())


class LaunchFailedError(RuntimeError):
    """Raised if the launcher has not started all ranks."""


class _Relay:
    """The process that the launcher has started for one rank."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.environment: dict[str, str] = {}
        self.variables: list[str] = []  # variables with the numbers of the descriptors
        self.descriptors: list[int] = []

    @property
    def is_open(self) -> bool:
        return self.connection.fileno() >= 0


class Launched:
    """One node's side of a job."""

    def __init__(self, part: Part, way: Way) -> None:
        self.part = part
        self.way = way
        self._loop = asyncio.get_running_loop()
        self._given: dict[str, str] = {}  # to the launcher
        self._relays: dict[int, _Relay] = {}
        self._failed = False

    async def prepare(self) -> None:
        """Wait until all relays of the job have connected. Raises LaunchFailedError."""
        listeners = {rank: self._listen(rank) for rank in self.part.ranks}
        launched: asyncio.Future[Any] = asyncio.ensure_future(self.way.ask(LaunchEnd(self.part.name)))
        launched.add_done_callback(lambda future: future.cancelled() or future.exception())
        met: asyncio.Future[Any] = asyncio.ensure_future(self._meet(listeners))
        try:
            await asyncio.wait([met, launched], return_when=asyncio.FIRST_COMPLETED)
            if not met.done():
                raise LaunchFailedError(launched.result())
            met.result()
        except (JobOverError, LookupError) as error:
            self.close()
            raise LaunchFailedError(str(error)) from error
        except BaseException:
            self.close()
            raise
        finally:
            met.cancel()
            launched.cancel()
            await asyncio.wait([met, launched])
            for listener in listeners.values():
                listener.close()
        for rank, relay in self._relays.items():
            self._loop.add_reader(relay.connection, self._relay_ended, rank, relay)

    def _listen(self, rank: int) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.setblocking(False)
        listener.bind(address(self.part.name, rank))
        listener.listen()
        return listener

    async def _meet(self, listeners: dict[int, socket.socket]) -> None:
        everyone = [LAUNCHER, *sorted(set(self.part.placement))]
        self._given = (await self.way.exchange(GIVEN, everyone, None))[LAUNCHER]
        await asyncio.gather(*(self._greet(rank, listener) for rank, listener in listeners.items()))
        await self.way.exchange(COME, everyone, None)

    async def _greet(self, rank: int, listener: socket.socket) -> None:
        while True:
            connection, _ = await self._loop.sock_accept(listener)
            if user_of(connection) == os.getuid():
                break
            connection.close()
        connection.setblocking(False)
        relay = self._relays[rank] = _Relay(connection)
        data = b""
        while len(data) < SIZE or len(data) < SIZE + int.from_bytes(data[:SIZE], "little"):
            await self._readable(connection)
            more, given, _, _ = socket.recv_fds(connection, _CHUNK, _MOST_DESCRIPTORS)
            if not more:
                raise LaunchFailedError(f"the relay that the launcher had started for rank {rank} ended at once")
            data += more
            relay.descriptors += given
        relay.variables, relay.environment = received(data[SIZE:])

    async def _readable(self, connection: socket.socket) -> None:
        ready = self._loop.create_future()
        self._loop.add_reader(connection, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            self._loop.remove_reader(connection)

    def _relay_ended(self, rank: int, relay: _Relay) -> None:
        self._part_with(relay)
        self.way.relay_lost(rank)

    def _part_with(self, relay: _Relay) -> None:
        if relay.is_open:
            self._loop.remove_reader(relay.connection)
            relay.connection.close()
        for descriptor in relay.descriptors:
            os.close(descriptor)
        relay.descriptors = []

    def join(self, rank: int) -> Joining:
        """Return what the relay of a rank was given."""
        relay = self._relays[rank]
        given = {name: value for name, value in relay.environment.items() if name not in _OF_A_RELAY}
        own = {name: value for name, value in given.items() if is_foreign(name)}
        local = self.part.ranks.index(rank)
        own |= {"MPI_LOCALRANKID": str(local), "MPI_LOCALNRANKS": str(len(self.part.ranks))}
        others = {name: value for name, value in given.items() if name not in own and self._given.get(name) != value}
        descriptors, relay.descriptors = relay.descriptors, []
        return Joining(own, dict(zip(relay.variables, descriptors, strict=False)), others)

    def ended(self, rank: int, code: int) -> None:
        """Report the end of a rank to its relay, and so to the launcher."""
        relay = self._relays[rank]
        if relay.is_open:
            try:
                relay.connection.send(code.to_bytes(SIZE, "little", signed=True))
            except (BrokenPipeError, ConnectionResetError):
                self.way.relay_lost(rank)
        self._part_with(relay)
        if code:
            self._failed = True
            self.way.fail(rank, "", code)

    def close(self) -> bool:
        """Close all relays. Returns whether no rank has failed."""
        for relay in self._relays.values():
            self._part_with(relay)
        return not self._failed
