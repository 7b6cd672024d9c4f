"""A simulated cluster, on which the front end and the agents of a run execute their own code.

Real are the front end with its rendezvous and decisions, the control connections, joining, the life of an agent, its
links, membership, RPC, groups, processes and registry. Simulated are what PARTS replaces: the event loop's sockets and
TLS (simulation.network), the wire (simulation.wire), the zygotes and their processes, terminals and files of the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from conftest import described
from dragon import _core
from dragon.agent import life
from dragon.agent.cluster import Cluster
from dragon.agent.processes.parents import FAREWELL, SYNCHRONISE
from dragon.agent.processes.registry import Exited, Failed, Started, Synchronised
from dragon.agent.processes.starting import Spawner
from dragon.agent.server import Agent
from dragon.control import join
from dragon.infrastructure.facts import FIRST_PUID, PUID_NODE_SHIFT
from dragon.infrastructure.membership import Token
from dragon.infrastructure.messages import Spawn, decode_spawn, encode
from dragon.infrastructure.start_request import ERROR, FAILED, PID, RUNNING, STATUS
from dragon.infrastructure.structs import msgspec
from dragon.launcher.base import Identity, Launcher
from dragon.launcher.frontend import FrontEnd, Options
from dragon.runtime.folder import Owner
from dragon.runtime.protocol.agents import StartHead
from dragon.runtime.run import this_run
from simulation.loop import Process, Source, this_process
from simulation.network import CERTIFICATE, Context, SimulatedLoop, Socket, host_of
from simulation.wire import Wire

PORT = 7000  # at which agents listen
JOIN_TIMEOUT_S = 60.0
_IDENTITY = Identity(certificate=CERTIFICATE, key=b"", secret=b"s" * 32)


class Simulation:
    """The cluster of one seed: `count` nodes and a front end. `trace` has what happened, with the time and who."""

    def __init__(self, seed: int, count: int, options: Options) -> None:
        self.loop = SimulatedLoop(seed)
        self.random, self.network = self.loop.random, self.loop.network
        self.trace: list[str] = []
        self.failures: list[str] = []
        self.numbers, self.zygotes = itertools.count(1), itertools.count(1)
        self.front_end: FrontEnd | None = None
        self.front = Process(self.loop, "front")
        self.network.host("front", "10.0.1.1")
        self.nodes = [Node(self, index, f"node-{index}", f"10.0.0.{index + 1}") for index in range(count)]
        self.double: Node | None = None  # an agent that joins as a node that is there already
        self.ended: asyncio.Task[int] | None = None  # the front end's end
        self._options = options

    def note(self, text: str) -> None:
        if not self.loop.over:
            self.trace.append(f"{self.loop.now:.6f} {text}")

    def fail(self, text: str) -> None:
        if not self.loop.over:
            self.note(f"VIOLATION {text}")
            self.failures.append(text)

    def begin(self) -> None:
        """Start the front end, which starts the agents."""
        self.ended = self.front.main.task(self._run_front_end())

    def join_twice(self, index: int) -> None:
        """Have another agent join as a node after that."""
        self.double = Node(self, index, f"double-{index}", "10.0.2.1")

    def start_double(self, token: Token) -> None:
        if self.double is not None:
            self.double.process.main.later(self.random.uniform(2, 4), self.double.start, token)

    async def _run_front_end(self) -> int:
        head = StartHead("head", [], {}, "/", signals=[])
        self.front_end = FrontEnd(SimulatedLauncher(self), head, self._options)
        try:
            return await self.front_end.run()
        except Exception as error:
            self.fail(f"the front end fails: {error!r}")
            raise
        finally:
            self.front.kill()
            self.network.end_process(self.front)

    def run(self, work: Callable[[Simulation], Awaitable[None]]) -> None:
        """Simulate until `work`, which is done outside of the cluster, is over."""
        with replaced(self):
            asyncio.set_event_loop(self.loop)
            try:
                self.loop.run_until_complete(self.loop.outside.main.task(work(self)))
            finally:
                self.failures += self.loop.errors
                self._forget()

    def _forget(self) -> None:
        """Drop what still runs, so that it neither goes on nor complains."""
        self.loop.over = True
        asyncio._set_running_loop(self.loop)
        for task in self.loop.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            close(task.get_coro())
        asyncio._set_running_loop(None)
        asyncio.set_event_loop(None)
        self.loop.close()


def close(work: Any) -> None:
    """Close a coroutine, however often it waits while it is closed."""
    while getattr(work, "cr_frame", None) is not None:
        with contextlib.suppress(Exception):
            work.close()


class SimulatedLauncher(Launcher):
    """Starts the simulated agents, and waits for their end."""

    name = "simulated"
    local = True
    identity = _IDENTITY

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._simulation = simulation
        self.nodes = [node.process.name for node in simulation.nodes]

    async def start(self, token: Token) -> None:
        token.addresses = [f"10.0.1.1:{token.addresses[0].rpartition(':')[2]}"]
        late = self._simulation.random.choice((0.3, 0.3, 5.0))  # the last node
        for node in self._simulation.nodes:
            delay = self._simulation.random.uniform(0, 0.3 if node is not self._simulation.nodes[-1] else late)
            own = msgspec.structs.replace(token, index=node.index)
            node.process.main.later(delay, node.start, own)
            if self._simulation.double is not None and self._simulation.double.index == node.index:
                self._simulation.start_double(own)

    async def stop(self, patience: float) -> None:
        until = self._simulation.loop.time() + patience
        while any(node.lives for node in self._simulation.nodes) and self._simulation.loop.time() < until:
            await asyncio.sleep(0.5)


class Node:
    """A node: its host, agent and zygote."""

    def __init__(self, simulation: Simulation, index: int, name: str, address: str) -> None:
        self.simulation, self.index = simulation, index
        self.process = Process(simulation.loop, name)
        self.host = simulation.network.host(name, address)
        self.zygote = Zygote(self)
        self.agent: Agent | None = None
        self.code: int | None = None  # the agent's exit code
        self.written: list[Any] = []  # the list of nodes that processes see

    @property
    def lives(self) -> bool:
        return not self.process.dead

    @property
    def cluster(self) -> Cluster:
        assert self.agent is not None
        assert self.agent.cluster is not None
        return self.agent.cluster

    def start(self, token: Token) -> None:
        self.process.main.task(self._serve(token))

    async def _serve(self, token: Token) -> None:
        run: Any = SimpleNamespace(
            folder=Path(f"/simulated/{self.index}"),
            node=self.index,
            label="",
            agent=Owner(1, 1),
            zygote_socket=lambda: self.zygote.requests,
        )

        async def find_others(run: Any, spawner: Spawner) -> Cluster:
            listener: Any = self.simulation.network.listen(self.host, self.process, PORT)
            node = described(self.index, host_name=self.process.name)
            membership, control = await join(token, node, [self.host.address], PORT, JOIN_TIMEOUT_S)
            cluster = Cluster(membership, control, listener, None, plain=True)
            await cluster.find_members()
            return cluster

        requests: Any = Socket(self.simulation.network, self.host, self.process)
        events: Any = self.zygote.events
        try:
            self.code = await life._serve(life.Beginning(run, self.zygote.pid, events, requests, join=find_others))
        except Exception as error:
            self.simulation.fail(f"the agent of {self.process.name} fails: {error!r}")
        self.simulation.note(f"{self.process.name} ends with code {self.code}")
        self.kill()

    def use(self, agent: Agent) -> Agent:
        """Note the agent, which serves from now on."""
        self.agent = agent
        return agent

    def kill(self) -> None:
        """End the agent; its zygote ends with it."""
        if not self.process.dead:
            self.process.kill()
            self.simulation.network.end_process(self.process)
            self.zygote.end()


class Channel(Source):
    """An end of a socket between an agent and its zygote."""

    def __init__(self, zygote: Zygote) -> None:
        self.zygote, self.loop = zygote, zygote.process.loop
        self.inbox: deque[bytes] = deque()
        self.is_closed = False

    def is_readable(self) -> bool:
        return bool(self.inbox) or self.zygote.has_ended.is_set()

    def setblocking(self, flag: bool) -> None: ...

    def fileno(self) -> int:
        return -1 if self.is_closed else 0

    def send(self, data: bytes) -> None:
        if self.zygote.has_ended.is_set():
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
        self.zygote.process.main.soon(self.zygote.hear, data)

    def close(self) -> None:
        self.is_closed = True


class Zygote:
    """The zygote of a node, with its processes. A request's arguments say how long its process lives, its exit code,
    and whether it ignores SIGTERM; the executable "missing" cannot be started. A head lives until it is ended."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.process = Process(node.simulation.loop, f"zygote of {node.process.name}")
        self.pid = 100_000 * next(node.simulation.zygotes)
        self.events, self.requests = Channel(self), Channel(self)
        self.has_ended = asyncio.Event()
        self.living: dict[int, Spawn] = {}  # by pid
        self._pids = itertools.count(self.pid + 1)

    def heads(self) -> list[int]:
        """Return the pids of head processes."""
        return [pid for pid, spawn in self.living.items() if spawn.executable == "head"]

    def hear(self, data: bytes) -> None:
        if data == SYNCHRONISE:
            self._tell(Synchronised())
        elif data == FAREWELL:
            self.process.main.later(self.node.simulation.random.uniform(0, 0.2), self.end)

    def start(self, data: bytes) -> None:
        random = self.node.simulation.random
        if not self.has_ended.is_set():
            self.process.main.later(random.uniform(0.0005, 0.03), self._start, decode_spawn(data))

    def _start(self, spawn: Spawn) -> None:
        if self.has_ended.is_set():
            return
        try:
            record = _core.Words(spawn.record)
        except _core.DestroyedError:  # the agent ends, and waits for no more processes
            return
        if spawn.executable == "missing":
            record[ERROR], record[STATUS] = errno.ENOENT, FAILED
            self._tell(Failed(spawn.puid, spawn.group, "there is no such program", errno.ENOENT))
            return
        pid = next(self._pids)
        self.living[pid] = spawn
        record[PID], record[STATUS] = pid, RUNNING
        self._tell(Started(spawn.puid, spawn.group, pid, spawn.name, spawn.parent, spawn.record, int(1e9)))
        if spawn.executable != "head":
            seconds, code, _ = spawn.arguments
            self.process.main.later(float(seconds), self.exit, pid, int(code))

    def exit(self, pid: int, code: int) -> None:
        """End a process, unless it has ended."""
        spawn = self.living.pop(pid, None)
        if spawn is not None:
            self._tell(Exited(spawn.puid, spawn.group, code, 0, 0, int(1e9)))

    def signal(self, pid: int, number: int) -> None:
        """Send a process a signal."""
        stubborn = self.living[pid].arguments[-1:] == ["stubborn"]
        if number == signal.SIGKILL or not stubborn:
            self.process.main.later(self.node.simulation.random.uniform(0, 0.05), self.exit, pid, -number)

    def _tell(self, event: Any) -> None:
        self.events.inbox.append(encode([event]))
        self.events.changed()

    def end(self) -> None:
        """End all processes, and the zygote."""
        self.living.clear()
        self.has_ended.set()
        self.events.changed()


class _Terminal:
    """In place of the front end's terminal, and of its standard input, of which nothing is read."""

    def __init__(self, *_: object) -> None: ...
    def write(self, number: int, data: bytes, written: Callable[[], None] | None = None) -> None:
        if written is not None:
            written()

    def finish(self, timeout: float) -> bool:
        return True

    def want(self) -> None: ...


class _Trace(logging.Handler):
    """Puts what is logged into the trace. An exception that is logged is a failure."""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__()
        self._simulation = simulation

    def emit(self, record: logging.LogRecord) -> None:
        text = f"{this_process().name} {record.levelname} {record.getMessage()}"
        if record.exc_info is not None:
            self._simulation.fail(f"{text}: {record.exc_info[1]!r}")
        else:
            self._simulation.note(text)


def _nothing(*_: object, **__: object) -> None:
    """Do nothing."""


def _refuse(*arguments: object) -> None:
    raise AssertionError(f"a simulated process has no place among the real ones: {arguments}")


def parts(simulation: Simulation) -> dict[str, object]:
    """Return what is simulated, by the names of what it replaces."""
    network = simulation.network
    nodes = [*simulation.nodes, *filter(None, [simulation.double])]

    def zygote(pid: int) -> Zygote:
        return nodes[pid // 100_000 - 1].zygote

    def here() -> Node:
        process = this_process()
        return next(node for node in nodes if node.process is process)

    async def ended(pid: int) -> None:
        await zygote(pid).has_ended.wait()

    def open_process(pid: int) -> int:
        if pid not in zygote(pid).living:
            raise ProcessLookupError
        return os.open(os.devnull, os.O_RDONLY)

    def make_socket(family: int) -> Socket:
        return Socket(network, host_of(this_process()), this_process())

    def create_server(address: tuple[str, int], **_: object) -> Socket:
        return network.listen(network.hosts["10.0.1.1"], simulation.front, 9000)

    sockets = dict(vars(socket), socket=make_socket, create_server=create_server)
    events = dict(vars(socket), recv_fds=lambda channel, size, count: (_taken(channel), [], 0, None))
    puids = itertools.count(1)
    return {
        "dragon._core.Wire": lambda node: Wire(node, network),
        "dragon._core.open_process": open_process,
        "dragon._core.signal_process": lambda handle, pid, number: zygote(pid).signal(pid, number),
        "dragon.agent.cluster.client_context": lambda *keys: Context(f"node-{here().index}"),
        "dragon.agent.cluster.server_context": lambda *keys: Context(f"node-{here().index}"),
        "dragon.agent.cluster.next_puid": lambda node: FIRST_PUID + (node << PUID_NODE_SHIFT) + next(puids),
        "dragon.agent.cluster.write_nodes": lambda folder, nodes: setattr(here(), "written", nodes),
        "dragon.agent.groups.run_nodes": lambda: here().written,
        "dragon.agent.life.Agent": lambda *given: here().use(Agent(*given)),
        "dragon.agent.life.allow_many_files": _nothing,
        "dragon.agent.life.end_orphans": _nothing,
        "dragon.agent.life.ended": ended,
        "dragon.agent.life.os": SimpleNamespace(**dict(vars(os), kill=lambda pid, number: zygote(pid).end())),
        "dragon.agent.life.tell_loop_errors": _nothing,
        "dragon.agent.processes.registry.parent_of": lambda pid: zygote(pid).pid,
        "dragon.agent.processes.starting.next_puid": lambda node: FIRST_PUID + (node << PUID_NODE_SHIFT) + next(puids),
        "dragon.agent.processes.starting.socket": SimpleNamespace(**events),
        "dragon.agent.processes.registry.os": SimpleNamespace(**dict(vars(os), kill=_refuse)),
        "dragon.agent.server.hold": _nothing,
        "dragon.agent.server.Clients": lambda *_: SimpleNamespace(accept=_nothing, pending=set()),
        "dragon.agent.wire.links.socket": SimpleNamespace(**sockets),
        "dragon.control.pinned_context": _nothing,
        "dragon.launcher.frontend.StandardInput": _Terminal,
        "dragon.launcher.frontend.Terminal": _Terminal,
        "dragon.launcher.frontend.allow_many_files": _nothing,
        "dragon.launcher.frontend.check_files": _nothing,
        "dragon.launcher.frontend.tell_loop_errors": _nothing,
        "dragon.launcher.rendezvous.Authority": lambda: SimpleNamespace(certificate=b"", issue=lambda name: (b"", b"")),
        "dragon.launcher.rendezvous.greeting_context": _nothing,
        "dragon.launcher.rendezvous.socket": SimpleNamespace(**sockets),
        "dragon.runtime.spawning.send_request": lambda channel, data, descriptors: channel.zygote.start(data),
    }


def _taken(channel: Channel) -> bytes:
    if not channel.inbox and not channel.zygote.has_ended.is_set():
        raise BlockingIOError
    return channel.inbox.popleft() if channel.inbox else b""


@contextlib.contextmanager
def replaced(simulation: Simulation) -> Iterator[None]:
    """Replace the parts, and have the log in the trace."""
    this_run()  # records of processes, and words of groups, are in the arena of this process
    indices = {process: node.index for node in simulation.nodes for process in (node.process, node.zygote.process)}
    simulation.loop.switched = lambda process: _core.set_node(indices.get(process, 0))  # names of objects contain it
    log = logging.getLogger("dragon")
    before, level = log.handlers, log.level
    log.handlers = [_Trace(simulation)]
    log.setLevel("INFO")
    with contextlib.ExitStack() as stack:
        for name, part in parts(simulation).items():
            stack.enter_context(mock.patch(name, part))
        try:
            yield
        finally:
            log.handlers = before
            log.setLevel(level)
            _core.set_node(0)
