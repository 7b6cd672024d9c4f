"""Ranks that find each other through what the site's launcher provides: one node's side of such a job.

The launcher starts a relay for each rank, which passes on what it was given. The rank itself is started like any other
process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from dragon import _core
from dragon.agent.mpi import relay as relay_program
from dragon.agent.mpi.job import Ask, Job, JobOverError, Joining, Side, Tell
from dragon.agent.mpi.relay import SIZE, address, received, user_of
from dragon.agent.mpi.segments import is_foreign
from dragon.agent.output.streams import ended, ready
from dragon.infrastructure.gpus import GPU_VARIABLES
from dragon.runtime.protocol.agents import LaunchEnd, Part, RelayLost
from dragon.runtime.run import this_run
from dragon.runtime.site_launcher import launch_command, launch_environment
from dragon.signals import how_ended

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


@dataclass
class _Relay:
    """The process that the launcher has started for one rank; `variables` have the numbers of the descriptors."""

    connection: socket.socket
    environment: dict[str, str] = field(default_factory=dict)
    variables: list[str] = field(default_factory=list)
    descriptors: list[int] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        return self.connection.fileno() >= 0


class Launched(Side):
    """One node's side of a job."""

    def __init__(self, part: Part, ask: Ask, tell: Tell) -> None:
        super().__init__(part, ask, tell)
        self._loop = asyncio.get_running_loop()
        self._given: dict[str, str] = {}  # to the launcher
        self._relays: dict[int, _Relay] = {}
        self._failed = False

    async def prepare(self) -> None:
        """Wait until all relays of the job have connected. Raises LaunchFailedError."""
        listeners = {rank: self._listen(rank) for rank in self.part.ranks}
        launched: asyncio.Future[Any] = asyncio.ensure_future(self.ask(LaunchEnd(self.part.name)))
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
        self._given = (await self.exchange(GIVEN, everyone, None))[LAUNCHER]
        await asyncio.gather(*(self._greet(rank, listener) for rank, listener in listeners.items()))
        await self.exchange(COME, everyone, None)

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
            await ready(self._loop.add_reader, self._loop.remove_reader, connection)
            more, given, _, _ = socket.recv_fds(connection, _CHUNK, _MOST_DESCRIPTORS)
            if not more:
                raise LaunchFailedError(f"the relay that the launcher had started for rank {rank} ended at once")
            data += more
            relay.descriptors += given
        relay.variables, relay.environment = received(data[SIZE:])

    def _relay_ended(self, rank: int, relay: _Relay) -> None:
        self._part_with(relay)
        self.tell(RelayLost(self.part.name, rank))

    def _part_with(self, relay: _Relay) -> None:
        if relay.is_open:
            self._loop.remove_reader(relay.connection)
            relay.connection.close()
        for descriptor in relay.descriptors:
            os.close(descriptor)
        relay.descriptors = []

    def join(self, rank: int) -> Joining:
        relay = self._relays[rank]
        given = {name: value for name, value in relay.environment.items() if name not in _OF_A_RELAY}
        own = {name: value for name, value in given.items() if is_foreign(name)}
        own |= self.place_of(rank)
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
                self.tell(RelayLost(self.part.name, rank))
        self._part_with(relay)
        if code:
            self._failed = True
            self.fail(rank, "", code)

    def close(self) -> bool:
        for relay in self._relays.values():
            self._part_with(relay)
        return not self._failed


_START_TIMEOUT_S = 60.0  # seconds within which all ranks must have been started
_FOR_THE_CAUSE_S = 0.5  # seconds within which the end of a rank may be reported that has caused the launcher's end
_FOR_OWN_END = 5.0  # seconds
_MAX_TAIL_BYTES = 2000  # bytes
# Isolated, without site packages: it needs none, and starts faster.
_TASK = [sys.executable, "-I", "-S", relay_program.__file__]


class Launch:
    """Runs the launcher, which starts a relay for each rank once all nodes await theirs, and ends after the last of
    them. If it ends before the job, the job ends too. `ended` is a future of how it has ended."""

    def __init__(self, job: Job, launcher: str, hosts: Mapping[int, str]) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._job = job
        self._launcher = launcher
        self._name = os.path.basename(launcher)
        self._hosts = [hosts[node] for node in job.placement]
        self._pid = 0
        self._begun = self._over = False
        self._loop = asyncio.get_running_loop()
        self._told: IO[bytes] = tempfile.TemporaryFile(dir=this_run().folder)  # noqa: SIM115 (it is this object's)
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        host_file = Path(this_run().folder, f"{self._job.name}.hosts")
        environment = {**launch_environment(self._launcher, host_file), relay_program.JOB: self._job.name}
        everyone = [LAUNCHER, *sorted(set(self._job.placement))]
        await self._job.gather(GIVEN, everyone, LAUNCHER, environment)
        if self.ended.done():
            return
        try:
            self._start(launch_command(self._launcher, self._hosts, host_file, _TASK), environment)
        except OSError as error:
            self.give_up(f"{self._launcher} could not be started: {error}")
            return
        ended = asyncio.ensure_future(self._await_end())
        come = self._job.gather(COME, everyone, LAUNCHER, None)
        either: set[asyncio.Future[Any]] = {ended, come}
        done, _ = await asyncio.wait(either, timeout=_START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            self.give_up(f"{self._name} has not started all ranks within {_START_TIMEOUT_S:g} s{self._tail()}")
        self._begun = come.done()
        code = await ended
        host_file.unlink(missing_ok=True)
        if not self.ended.done():
            self.ended.set_result(f"{self._name} ended with {how_ended(code)}{self._tail()}")
        if code:
            self._loop.call_later(_FOR_THE_CAUSE_S, self._end_job, 0, f"lost its launcher: {self.ended.result()}")

    def _start(self, command: list[str], environment: dict[str, str]) -> None:
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._pid = _core.start_executable(
                executable=self._launcher,
                arguments=command,
                environment=[f"{name}={value}" for name, value in environment.items()],
                descriptors=[null, self._told.fileno(), self._told.fileno()],
                death_signal=signal.SIGTERM,
            )
        finally:
            os.close(null)

    async def _await_end(self) -> int:
        await ended(self._pid)
        pid, self._pid = self._pid, 0
        try:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        except ChildProcessError:
            return -signal.SIGKILL  # killed and reaped by the agent at the end of the run

    def _tail(self) -> str:
        size = os.fstat(self._told.fileno()).st_size
        text = os.pread(self._told.fileno(), _MAX_TAIL_BYTES, max(0, size - _MAX_TAIL_BYTES)).decode(errors="replace")
        return f"; it last wrote:\n{text.rstrip()}" if text.strip() else ""

    def relay_lost(self, rank: int) -> None:
        if self.ended.done():
            self._end_job(rank, f"lost its launcher: {self.ended.result()}")
        else:
            self._end_job(rank, f"was ended by its launcher, {self._name}{self._tail()}")

    def _end_job(self, rank: int, what: str) -> None:
        if not self._over:
            self._job.end(rank, what, 1, at_once=True)

    def give_up(self, why: str) -> None:
        """Abort the launch; nodes that wait for it get the reason."""
        if not self.ended.done():
            self.ended.set_result(why)
        self._signal(signal.SIGTERM)

    def withdraw(self) -> None:
        """Abort the launch of a job that is being ended, if its ranks have not been started."""
        if not self._begun:
            self.give_up("its group was ended before that")

    def close(self) -> None:
        self._over = True
        if not self.ended.done():
            self.ended.set_result("its group was closed")
        if not self._pid:
            self._task.cancel()
        self._loop.call_later(_FOR_OWN_END, self._signal, signal.SIGTERM)
        self._loop.call_later(2 * _FOR_OWN_END, self._signal, signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._pid:
            os.kill(self._pid, number)
