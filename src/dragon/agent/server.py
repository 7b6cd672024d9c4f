"""The agent's loop: requests of the node's processes, events of the zygote, the end of the run."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec
import uvloop

from dragon import _core
from dragon.agent.groups import Groups
from dragon.agent.registry import Registry
from dragon.agent.streams import Streams
from dragon.agent.zygote import children_of
from dragon.infrastructure.messages import Reply, Spawn, decode_request, encode
from dragon.runtime.folder import Owner, is_alive, remove_folder
from dragon.runtime.log import runtime_log
from dragon.runtime.run import Run

__all__ = ["Agent"]

log = runtime_log("agent")

_LARGEST_FRAME = 256 * 2**20
_LARGEST_EVENT = 64 * 1024
_SWEEP_EVERY = 10.0  # seconds


class Agent:
    """One per node. Everything in it runs on one event loop."""

    def __init__(self, run: Run, owner: Owner, zygote: int, events: socket.socket, requests: socket.socket) -> None:
        self.run = run
        self.owner = owner
        self.zygote = zygote
        self.events = events
        self.requests = requests
        self.streams = Streams(run.label)
        self.registry = Registry(self.streams)
        self.groups = Groups(self.send_spawn, self.registry)
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        self._synchronised = False

    def serve_for_ever(self) -> NoReturn:
        """Serve until the run ends, then leave nothing behind, whatever happened."""
        try:
            uvloop.run(self._serve())
        except Exception:
            log.exception("the agent failed; the run ends")
        finally:
            self._clean_up()
            os._exit(0)

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.over = self.loop.create_future()
        for number in (signal.SIGTERM, signal.SIGHUP):
            self.loop.add_signal_handler(number, self.end)
        self._watch(self.owner, self.end)
        try:
            self.spawner = self.run.zygote_socket()
        except ConnectionRefusedError:
            log.error("the zygote (pid %d) is gone already; the run ends", self.zygote)
            return
        self.spawner.setblocking(False)
        self.events.setblocking(False)
        self.requests.setblocking(False)
        self.loop.add_reader(self.events, self._on_events)
        self.loop.add_reader(self.requests, self._on_connect)
        self.streams.attach(self.loop)
        self.groups.attach(self.loop)
        self._sweep()
        await self.over

    def _sweep(self) -> None:
        """Free what processes left that the zygote did not start: programs that joined the run, a user's own forks."""
        _core.reap_dead()
        self.loop.call_later(_SWEEP_EVERY, self._sweep)

    def _watch(self, process: Owner, gone: Callable[[], None]) -> None:
        try:
            fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            gone()
            return
        if is_alive(process):
            self.loop.add_reader(fd, gone)
        else:
            gone()

    # ---- the zygote

    def send_spawn(self, request: Spawn, descriptors: list[int]) -> None:
        """Have a process started. The loop never waits for the zygote, which may be waiting for the loop."""
        self._waiting.append((encode(request), [os.dup(fd) for fd in descriptors]))
        self._send_waiting()

    def _send_waiting(self) -> None:
        while self._waiting:
            data, descriptors = self._waiting[0]
            try:
                socket.send_fds(self.spawner, [data], descriptors)
            except BlockingIOError:
                self.loop.add_writer(self.spawner, self._send_waiting)
                return
            except OSError as error:
                log.error("the zygote is gone: %s", error)
                self.end()
                return
            for fd in descriptors:
                os.close(fd)
            self._waiting.popleft()
        self.loop.remove_writer(self.spawner)

    def _on_events(self) -> None:
        for _ in range(64):
            try:
                data, descriptors, _, _ = socket.recv_fds(self.events, _LARGEST_EVENT, 8)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if not data:
                log.error("the zygote (pid %d) is gone; the run ends", self.zygote)
                self.loop.remove_reader(self.events)
                self.end()
                return
            for event in msgspec.msgpack.decode(data):
                self._on_event(event.pop("event"), event, descriptors)

    def _on_event(self, kind: str, event: dict[str, Any], descriptors: list[int]) -> None:
        if kind == "synchronised":
            self._synchronised = True
            return
        if kind == "stream":
            self.streams.add(**event, descriptors=descriptors)
            return
        getattr(self.registry, kind)(**event)
        if event["group"]:
            getattr(self.groups, kind)(**event)

    def _catch_up(self) -> None:
        """Take in what the zygote has done so far: who saw a process start or end must find that in the registry."""
        self._synchronised = False
        self.events.send(b"?")
        waiting = select.poll()
        waiting.register(self.events, select.POLLIN)
        while not self._synchronised and not self.over.done() and waiting.poll(1000):
            self._on_events()

    # ---- requests

    def _on_connect(self) -> None:
        try:
            connection, _ = self.requests.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        uid = int.from_bytes(credentials[4:8], "little")
        if uid != os.getuid():
            log.warning("a process of user %d was refused", uid)
            connection.close()
            return
        Client(connection, self)

    def handle(self, client: Client, operation: str, arguments: dict[str, Any], descriptors: list[int]) -> Any:
        """Do what a process asked for; what this returns or raises is the reply."""
        if operation == "end":
            self.end()
            return None
        part, _, name = operation.partition(".")
        if part == "registry":
            self._catch_up()
        served: Registry | Groups | None = {"registry": self.registry, "groups": self.groups}.get(part)  # type: ignore[assignment]
        if served is None or name not in served.OPERATIONS:
            raise ValueError(f"the agent knows no operation {operation!r}")
        if descriptors:
            arguments["descriptors"] = descriptors
        return getattr(served, name)(**arguments)

    # ---- the end

    def end(self) -> None:
        """End the run; may be called again."""
        if not self.over.done():
            self.over.set_result(None)

    def _clean_up(self) -> None:
        self.events.close()  # the zygote ends everything below it
        try:
            gone = select.poll()
            gone.register(os.pidfd_open(self.zygote), select.POLLIN)
            if not gone.poll(10_000):
                log.error("the zygote does not end; it is killed")
                os.kill(self.zygote, signal.SIGKILL)
        except ProcessLookupError:
            pass
        # What outlived its parents came to this process.
        while children := children_of(os.getpid()):
            for pid in children:
                if pid != self.zygote:
                    os.kill(pid, signal.SIGKILL)
            for pid in children:
                os.waitpid(pid, 0)
        self.streams.drain()
        remove_folder(self.run.folder)


class Client:
    """A connection of a process of this node: frames of a length and a Request, each answered by a Reply."""

    def __init__(self, connection: socket.socket, agent: Agent) -> None:
        self.connection = connection
        self.agent = agent
        self.received = bytearray()
        self.descriptors: list[int] = []
        self.to_send = bytearray()
        connection.setblocking(False)
        agent.loop.add_reader(connection, self._on_readable)

    def _on_readable(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self.connection, 1 << 20, 16)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data, descriptors = b"", []
        self.descriptors += descriptors
        if not data:
            self._close()
            return
        self.received += data
        while len(self.received) >= 4:
            size = int.from_bytes(self.received[:4], "little")
            if size > _LARGEST_FRAME:
                log.warning("a request of %d bytes was refused", size)
                self._close()
                return
            if len(self.received) < 4 + size:
                return
            body = bytes(self.received[4 : 4 + size])
            del self.received[: 4 + size]
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        descriptors, self.descriptors = self.descriptors, []
        try:
            request = decode_request(body)
            reply = Reply(value=self.agent.handle(self, request.operation, request.arguments, descriptors))
        except Exception as error:
            log.debug("request failed", exc_info=True)
            reply = Reply(error=(type(error).__name__, str(error)))
        finally:
            for fd in descriptors:
                os.close(fd)
        data = encode(reply)
        self.to_send += len(data).to_bytes(4, "little") + data
        self._flush()

    def _flush(self) -> None:
        try:
            while self.to_send:
                del self.to_send[: self.connection.send(self.to_send)]
        except BlockingIOError:
            self.agent.loop.add_writer(self.connection, self._flush)
            return
        except (BrokenPipeError, ConnectionResetError):
            self._close()
            return
        self.agent.loop.remove_writer(self.connection)

    def _close(self) -> None:
        self.agent.loop.remove_reader(self.connection)
        self.agent.loop.remove_writer(self.connection)
        self.connection.close()
        for fd in self.descriptors:
            os.close(fd)
        self.descriptors = []
