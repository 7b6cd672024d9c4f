"""A simulated network: TCP connections between simulated hosts, as sockets and as asyncio's transports.

A connection delivers pieces in order, whole: bytes, or frames of a simulated wire. What is sent over a path that is cut
arrives when the cut is over, unless the connection has ended: one whose kernel probes the other side (SO_KEEPALIVE)
ends after four to five silent seconds. TLS is replaced by an exchange of names.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import socket as real
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

from simulation.loop import Loop, Process, Source, Thread, this_process

CERTIFICATE = b"the front end's certificate"
SILENCE_S = 4.0, 5.2


def broken(number: int) -> OSError:
    """Return the exception of an error number."""
    return OSError(number, os.strerror(number))


class Host:
    """A machine with one address, and the sockets that listen there, by port."""

    def __init__(self, network: Network, name: str, address: str) -> None:
        self.network, self.name, self.address = network, name, address
        self.listeners: dict[int, Socket] = {}
        self.pieces = self.bytes = 0  # sent and received, as far as they were counted


class Path:
    """The way from one host to another. `cuts` is the number of faults that cut it."""

    def __init__(self, latency: float) -> None:
        self.latency, self.usual, self.cuts = latency, latency, 0


class Socket(Source):
    """A socket: a listener, or one end of a connection."""

    def __init__(self, network: Network, host: Host, process: Process) -> None:
        self.network, self.loop, self.host, self.process = network, network.loop, host, process
        self.number = next(network.numbers)
        self.inbox: deque[Any] = deque()  # pieces, or the connections that a listener has not accepted
        self.peer: Socket | None = None
        self.is_probed = self.is_closed = self.is_at_end = self.is_reset = False
        self.error: OSError | None = None
        self.arrival = 0.0  # of what was sent last
        self.held: list[Any] = []  # what was sent while the path is cut
        network.sockets[self.number] = self

    def is_readable(self) -> bool:
        return bool(self.inbox) or self.is_at_end or self.error is not None

    def take(self) -> Any:
        """Return the next piece, or b"" at the end. Raises OSError."""
        if self.inbox:
            return self.inbox.popleft()
        if self.error is not None:
            raise self.error
        return b""

    # ---- the interface of socket.socket, as far as it is used

    def accept(self) -> tuple[Socket, tuple[str, int]]:
        if not self.inbox:
            raise BlockingIOError
        accepted: Socket = self.inbox.popleft()
        assert accepted.peer is not None
        return accepted, (accepted.peer.host.address, 0)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.is_probed |= option == real.SO_KEEPALIVE

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def getsockname(self) -> tuple[str, int]:
        return self.host.address, next(port for port, each in self.host.listeners.items() if each is self)

    def detach(self) -> int:
        self.unwatch()
        return self.number

    def close(self) -> None:
        self.network.close(self)


class Network:
    """The hosts, and the paths between them."""

    def __init__(self, loop: Loop) -> None:
        self.loop, self.random = loop, loop.random
        self.thread = Thread(loop.outside, "network")
        self.numbers = itertools.count(1000)
        self.hosts: dict[str, Host] = {}
        self.sockets: dict[int, Socket] = {}
        self._paths: dict[tuple[Host, Host], Path] = {}
        self.latency = self.random.choice((0.0002, 0.0002, 0.005, 0.05))
        self.resets = 0.0  # the probability that a connection is reset after a piece

    def host(self, name: str, address: str) -> Host:
        found = self.hosts[address] = Host(self, name, address)
        return found

    def path(self, one: Host, other: Host) -> Path:
        if (one, other) not in self._paths:
            self._paths[one, other] = Path(self.latency * self.random.uniform(0.5, 2))
        return self._paths[one, other]

    def is_cut(self, one: Host, other: Host) -> bool:
        return one is not other and bool(self.path(one, other).cuts)

    def listen(self, host: Host, process: Process, port: int) -> Socket:
        listener = host.listeners[port] = Socket(self, host, process)
        return listener

    # ---- pieces

    def send(self, end: Socket, piece: Any) -> None:
        """Send a piece, or what ends a connection."""
        if end.error is not None and piece is not None:
            raise end.error
        peer = end.peer
        assert peer is not None
        for host in (end.host, peer.host) if piece is not None else ():
            host.pieces += 1
            host.bytes += len(piece if isinstance(piece, bytes) else piece.message)
        path = self.path(end.host, peer.host)
        end.arrival = max(self.loop.now + path.latency * self.random.uniform(0.8, 1.5), end.arrival + 1e-7)
        self.thread.later(end.arrival - self.loop.now, self._deliver, end, piece)

    def _deliver(self, end: Socket, piece: Any) -> None:
        peer = end.peer
        assert peer is not None
        if end.is_reset:
            return
        if end.held or self.is_cut(end.host, peer.host):
            end.held.append(piece)
            return
        self._put(end, peer, piece)

    def _put(self, end: Socket, peer: Socket, piece: Any) -> None:
        if peer.is_closed:
            if piece is not None:
                self.reset(end)
            return
        if piece is None:
            peer.is_at_end = True
        else:
            peer.inbox.append(piece)
        peer.changed()
        if self.resets and self.random.random() < self.resets:
            self.reset(end)

    def close(self, end: Socket, abruptly: bool = False) -> None:
        """Close a socket: the other end reads what was sent, then the end; or it is reset, if `abruptly`."""
        if end.is_closed:
            return
        end.is_closed = True
        end.unwatch()
        self.sockets.pop(end.number, None)
        for port, listener in list(end.host.listeners.items()):
            if listener is end:
                del end.host.listeners[port]
                for waiting in end.inbox:
                    self.close(waiting, abruptly=True)
        if end.peer is None:
            return
        if abruptly:
            self.reset(end)
        else:
            self.send(end, None)

    def reset(self, end: Socket, number: int = errno.ECONNRESET) -> None:
        """Break a connection: both ends fail, each when it learns of it, and what is in flight is lost."""
        peer = end.peer
        assert peer is not None
        if end.is_reset:
            return
        end.is_reset = peer.is_reset = True
        for each in (end, peer):
            delay = self.path(end.host, peer.host).latency * self.random.uniform(0, 2)
            self._fail_later(each, delay, number)

    def _fail_later(self, end: Socket, delay: float, number: int) -> None:
        assert end.peer is not None
        if number == errno.ECONNRESET and self.is_cut(end.peer.host, end.host):  # it does not hear of it
            self.thread.later(self.random.uniform(*SILENCE_S), self._fail, end, errno.ETIMEDOUT)
        else:
            self.thread.later(delay, self._fail, end, number)

    def _fail(self, end: Socket, number: int) -> None:
        if end.error is None and not end.is_closed:
            end.error = broken(number)
            if self.random.random() < 0.5:
                end.inbox.clear()
            end.changed()

    # ---- faults

    def cut(self, one: Host, other: Host) -> None:
        """Cut the way from one host to another. What is sent or acknowledged that way is lost."""
        self.path(one, other).cuts += 1
        for end in list(self.sockets.values()):
            if end.peer is not None and {end.host, end.peer.host} == {one, other}:
                self.thread.later(self.random.uniform(*SILENCE_S), self._silence, end, self.loop.now)

    def _silence(self, end: Socket, since: float) -> None:
        peer = end.peer
        assert peer is not None
        if not (self.is_cut(end.host, peer.host) or self.is_cut(peer.host, end.host)):
            return
        if end.is_probed and not end.is_reset:
            self.reset(end, errno.ETIMEDOUT)

    def mend(self, one: Host, other: Host) -> None:
        """End a cut."""
        self.path(one, other).cuts -= 1
        if self.is_cut(one, other):
            return
        for end in list(self.sockets.values()):
            for each in filter(None, (end, end.peer)):
                if each.peer is not None and (each.host, each.peer.host) == (one, other) and each.held:
                    self.thread.later(self.random.uniform(0.0, 0.3), self._release, each)

    def _release(self, end: Socket) -> None:
        peer = end.peer
        assert peer is not None
        while end.held and not end.is_reset and not self.is_cut(end.host, peer.host):
            self._put(end, peer, end.held.pop(0))

    def break_connections(self, one: Host, other: Host) -> None:
        """Reset all connections between two hosts."""
        for end in list(self.sockets.values()):
            if end.peer is not None and (end.host, end.peer.host) == (one, other):
                self.reset(end)

    def end_process(self, process: Process) -> None:
        """Close what an ended process had open."""
        for end in list(self.sockets.values()):
            if end.process is process:
                self.close(end, abruptly=end.peer is not None and self.random.random() < 0.3)

    # ---- connections

    async def connect(self, end: Socket, address: str, port: int) -> None:
        """Connect a socket. Raises ConnectionRefusedError."""
        there = end.host if address == "127.0.0.1" and address not in self.hosts else self.hosts[address]
        pause = 2 * self.path(end.host, there).latency
        await asyncio.sleep(pause)
        while self.is_cut(end.host, there) or self.is_cut(there, end.host):
            await asyncio.sleep(1.0)
        listener = there.listeners.get(port)
        if listener is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        accepted = Socket(self, there, listener.process)
        end.peer, accepted.peer = accepted, end
        listener.inbox.append(accepted)
        listener.changed()


class SimulatedLoop(Loop):
    """A loop with sockets of the simulated network."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.network = Network(self)

    async def sock_connect(self, sock: Any, address: Any) -> None:
        await self.network.connect(sock, *address[:2])

    async def sock_recv(self, sock: Any, nbytes: int) -> bytes:
        if not sock.is_readable():
            arrived: asyncio.Future[None] = self.create_future()
            sock.watch(lambda: arrived.done() or arrived.set_result(None))
            try:
                await arrived
            finally:
                sock.unwatch()
        data: bytes = sock.take()
        return data

    async def sock_sendall(self, sock: Any, data: Any) -> None:
        self.network.send(sock, bytes(data))

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, *, ssl: Any = None
    ) -> tuple[Transport, asyncio.Protocol]:
        process = this_process()
        end = Socket(self.network, host_of(process), process)
        try:
            await self.network.connect(end, host, port)
            await self.sock_sendall(end, b"client hello")
            await self._hello(end)
        except BaseException:
            end.close()
            raise
        return self._transport(protocol_factory, end)

    async def connect_accepted_socket(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], sock: Socket, *, ssl: Any = None
    ) -> tuple[Transport, asyncio.Protocol]:
        await self._hello(sock)
        await self.sock_sendall(sock, b"server hello")
        return self._transport(protocol_factory, sock)

    async def _hello(self, end: Socket) -> None:
        if not await self.sock_recv(end, 1):
            raise ConnectionResetError("the connection was closed while it was made")

    def _transport(self, make: Callable[[], asyncio.Protocol], end: Socket) -> tuple[Transport, asyncio.Protocol]:
        protocol = make()
        transport = Transport(end, protocol)
        protocol.connection_made(transport)
        end.watch(transport.look)
        return transport, protocol


def host_of(process: Process) -> Host:
    """Return the host of a process, which has the process's name up to a blank."""
    network: Network = process.loop.network  # type: ignore[attr-defined]
    return next(host for host in network.hosts.values() if host.name == process.name)


class Transport(asyncio.Transport):
    """The transport of a connection that speaks TLS."""

    def __init__(self, end: Socket, protocol: asyncio.Protocol) -> None:
        super().__init__({"socket": end, "ssl_object": _Names("", False)})
        self._end, self._protocol, self._is_closing = end, protocol, False

    def look(self) -> None:
        """Deliver what has arrived."""
        try:
            data = self._end.take()
        except OSError as error:
            self._lose(error)
            return
        if data:
            self._protocol.data_received(data)
        else:
            self._lose(None)

    def _lose(self, error: OSError | None) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._end.close()
            self._end.loop.call_soon(self._tell, error)

    def _tell(self, error: OSError | None) -> None:
        self._protocol.connection_lost(error)

    def write(self, data: Any) -> None:
        if not self._is_closing and self._end.error is None:
            self._end.network.send(self._end, bytes(data))

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._lose(None)

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._end.network.close(self._end, abruptly=True)
            self._end.loop.call_soon(self._tell, None)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, asyncio.Protocol)
        self._protocol = protocol


class Context:
    """In place of an ssl.SSLContext: a certificate with a name, which the other end believes."""

    def __init__(self, name: str) -> None:
        self.name = name

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, server_side: bool) -> _Names:
        return _Names(self.name, server_side, incoming, outgoing)


class _Names:
    """In place of an ssl.SSLObject: both ends say a name, the server after the client."""

    def __init__(self, name: str, is_server: bool, *streams: ssl.MemoryBIO) -> None:
        self._name, self._is_server, self._streams = name.encode() + b"\n", is_server, streams
        self._their, self._said = b"", False

    def do_handshake(self) -> None:
        if not self._is_server:
            self._say()
        while not self._their.endswith(b"\n"):
            self._their += self.read(1)
        self._say()

    def _say(self) -> None:
        if not self._said:
            self._said = True
            self.write(self._name)

    def read(self, size: int) -> bytes:
        data = self._streams[0].read(size)
        if not data:
            raise ssl.SSLWantReadError
        return data

    def write(self, data: bytes) -> None:
        self._streams[1].write(data)

    def getpeercert(self, binary_form: bool = False) -> Any:
        return CERTIFICATE if binary_form else {"subject": ((("commonName", self._their.decode().strip()),),)}
