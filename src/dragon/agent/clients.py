"""Requests of the node's processes, over the agent's socket."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Callable
from typing import Any

from dragon.agent.wire.responses import error_of
from dragon.infrastructure.messages import encode
from dragon.runtime.log import Once, runtime_log
from dragon.runtime.protocol.decoding import decode_request
from dragon.runtime.protocol.request import Reply, Request, frame

__all__ = ["Client", "Clients"]

log = runtime_log("agent")

_LARGEST_FRAME = 2**31 - 1
_PAUSE = 0.1  # seconds after which it is tried again to accept a process
# (request, process id, descriptors) -> the answer, or a future of it.
Handle = Callable[[Request[object], int, list[int]], object]


class Clients:
    """Accepts connections of this user's processes on `requests`, and has `handle` answer what they ask."""

    def __init__(self, requests: socket.socket, handle: Handle) -> None:
        self.loop = asyncio.get_running_loop()
        self.handle = handle
        self.pending: set[Client] = set()  # those that wait for a reply
        self._requests = requests
        self._tell = Once(log)
        requests.setblocking(False)
        self.loop.add_reader(requests, self.accept)

    def accept(self) -> None:
        """Take in everybody who has connected, with what they ask already."""
        while True:
            try:
                connection, _ = self._requests.accept()
            except ConnectionAbortedError:
                continue
            except BlockingIOError:
                return
            except OSError as error:  # this process has no descriptor left for now: they wait
                limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                self._tell("processes wait to be heard: {} (ulimit -n {})", error.strerror, limit)
                self.loop.remove_reader(self._requests)
                self.loop.call_later(_PAUSE, self.loop.add_reader, self._requests, self.accept)
                return
            self._take_in(connection)

    def _take_in(self, connection: socket.socket) -> None:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, uid = int.from_bytes(credentials[:4], "little"), int.from_bytes(credentials[4:8], "little")
        if uid != os.getuid():
            log.warning("a process of user %d was refused", uid)
            connection.close()
            return
        Client(connection, pid, self).read()


class Client:
    """A connection of a process: frames of a length and a Request, each answered by a Reply before the next one."""

    def __init__(self, connection: socket.socket, pid: int, clients: Clients) -> None:
        self.connection = connection
        self.pid = pid
        self.clients = clients
        self.loop = clients.loop
        self.received = bytearray()
        self.descriptors: list[int] = []
        self.to_send = bytearray()
        self.pending: asyncio.Future[Any] | None = None
        self.request: Request[object] | None = None  # the pending one, and since when it is
        self.since = 0.0
        connection.setblocking(False)
        self.loop.add_reader(connection, self.read)

    def read(self) -> None:
        """Read what is there, and answer what is asked."""
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
        while len(self.received) >= 4 and self.pending is None:
            size = int.from_bytes(self.received[:4], "little")
            if size > _LARGEST_FRAME:
                log.warning("a request of %d bytes was refused", size)
                self._close()
                return
            if len(self.received) < 4 + size:
                return
            body = bytes(memoryview(self.received)[4 : 4 + size])
            del self.received[: 4 + size]
            self._answer(body)

    def _answer(self, body: bytes) -> None:
        descriptors, self.descriptors = self.descriptors, []
        try:
            request = decode_request(body)
            value = self.clients.handle(request, self.pid, descriptors)
        except Exception as error:
            self._fail(error)
        else:
            if isinstance(value, asyncio.Future):
                self.pending, self.request, self.since = value, request, self.loop.time()
                self.clients.pending.add(self)
                value.add_done_callback(self._on_done)
            else:
                self._reply(Reply(value=value))
        finally:
            for fd in descriptors:
                os.close(fd)

    def _on_done(self, future: asyncio.Future[Any]) -> None:
        if self.pending is not future:
            return  # the client is gone
        self.pending = self.request = None
        self.clients.pending.discard(self)
        error = None if future.cancelled() else future.exception()
        if error is not None:
            self._fail(error)
        else:
            self._reply(Reply(value=future.result()))

    def _fail(self, error: BaseException) -> None:
        log.debug("request failed", exc_info=error)
        self._reply(Reply(error=error_of(error)))

    def _reply(self, reply: Reply[object]) -> None:
        self.to_send += frame(encode(reply))
        self._flush()

    def _flush(self) -> None:
        try:
            while self.to_send:
                del self.to_send[: self.connection.send(self.to_send)]
        except BlockingIOError:
            self.loop.add_writer(self.connection, self._flush)
            return
        except (BrokenPipeError, ConnectionResetError):
            self._close()
            return
        self.loop.remove_writer(self.connection)

    def _close(self) -> None:
        self.loop.remove_reader(self.connection)
        self.loop.remove_writer(self.connection)
        self.connection.close()
        pending, self.pending = self.pending, None
        self.clients.pending.discard(self)
        if pending is not None:
            pending.cancel()
        for fd in self.descriptors:
            os.close(fd)
        self.descriptors = []
