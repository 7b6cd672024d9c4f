"""Serves the requests of the node's processes, over the agent's socket."""

from __future__ import annotations

import asyncio
import functools
import os
import resource
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dragon.infrastructure.messages import encode
from dragon.runtime.log import Once, runtime_log
from dragon.runtime.protocol.agents import OfFrontEnd
from dragon.runtime.protocol.request import BetweenAgents, Caller, Reply, Request
from dragon.runtime.rpc import Table, error_of

log = runtime_log("agent")

_LARGEST_FRAME = 2**31 - 1
_ACCEPT_RETRY_S = 0.1  # seconds between two attempts to accept a process
# Returns the answer, or a future of it.
Handle = Callable[[Request[object], Caller], object]


class Clients:
    """Accepts connections of this user's processes; `handle` answers the requests of the kinds in `table`."""

    def __init__(self, requests: socket.socket, node: int, table: Table, handle: Handle) -> None:
        self.node = node
        self.loop = asyncio.get_running_loop()
        self.table, self.handle = table, handle
        self.pending: set[Asked] = set()
        self._requests = requests
        self._tell = Once(log)
        requests.setblocking(False)
        self.loop.add_reader(requests, self.accept)

    def accept(self) -> None:
        """Accept all pending connections, and serve their first requests."""
        while True:
            try:
                connection, _ = self._requests.accept()
            except ConnectionAbortedError:
                continue
            except BlockingIOError:
                return
            except OSError as error:  # this process has no free descriptor now: the connections stay pending
                limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                self._tell("processes wait until the agent can accept them: {} (ulimit -n {})", error.strerror, limit)
                self.loop.remove_reader(self._requests)
                self.loop.call_later(_ACCEPT_RETRY_S, self.loop.add_reader, self._requests, self.accept)
                return
            self.take_in(connection)

    def take_in(self, connection: socket.socket) -> None:
        """Serve the requests of a connection, if it is one of this user's processes."""
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, uid = int.from_bytes(credentials[:4], "little"), int.from_bytes(credentials[4:8], "little")
        if uid != os.getuid():
            log.warning("a process of user %d was refused", uid)
            connection.close()
            return
        Client(connection, pid, self).read()


@dataclass(eq=False)
class Asked:
    """A request without an answer yet: its process, and since when, by the loop's clock in seconds."""

    pid: int
    request: Request[object]
    since: float
    answer: asyncio.Future[Any]


class Client:
    """A connection of a process. A request is answered by a Reply before the next one is read."""

    def __init__(self, connection: socket.socket, pid: int, clients: Clients) -> None:
        self.connection = connection
        self.pid = pid
        self.clients = clients
        self.loop = clients.loop
        self.received = bytearray()
        self.descriptors: list[int] = []
        self.to_send = bytearray()
        self.asked: Asked | None = None
        connection.setblocking(False)
        self.loop.add_reader(connection, self.read)

    def read(self) -> None:
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
        while len(self.received) >= 4 and self.asked is None:
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
            request = self.clients.table.decode(body, (BetweenAgents, OfFrontEnd))
            value = self.clients.handle(request, Caller(self.clients.node, self.pid, descriptors))
        except Exception as error:
            self._fail(error)
        else:
            if isinstance(value, asyncio.Future):
                self.asked = asked = Asked(self.pid, request, self.loop.time(), value)
                self.clients.pending.add(asked)
                value.add_done_callback(functools.partial(self._on_done, asked))
            else:
                self._reply(Reply(value=value))
        finally:
            for fd in descriptors:
                os.close(fd)

    def _on_done(self, asked: Asked, future: asyncio.Future[Any]) -> None:
        if self.asked is not asked:
            return  # the client has closed the connection
        self.asked = None
        self.clients.pending.discard(asked)
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is not None:
            self._fail(error)
        else:
            self._reply(Reply(value=future.result()))

    def _fail(self, error: BaseException) -> None:
        log.debug("request failed", exc_info=error)
        self._reply(Reply(error=error_of(error)))

    def _reply(self, reply: Reply[object]) -> None:
        body = encode(reply)
        self.to_send += len(body).to_bytes(4, "little") + body
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
        # A client that was interrupted still reads, to undo what was done.
        if (asked := self.asked) is not None and asked.answer.done():
            self._on_done(asked, asked.answer)
        if self.connection.fileno() < 0:
            return  # that failed, and has closed it
        self.loop.remove_reader(self.connection)
        self.loop.remove_writer(self.connection)
        self.connection.close()
        self.received.clear()  # unread requests are not executed
        if (asked := self.asked) is not None:
            self.asked = None
            self.clients.pending.discard(asked)
            asked.answer.cancel()
        for fd in self.descriptors:
            os.close(fd)
        self.descriptors = []
