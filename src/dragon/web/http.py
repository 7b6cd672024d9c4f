"""A server of GET requests on the loopback interface: as much of HTTP as Prometheus and a browser need."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from dragon.infrastructure.errors import DragonError
from dragon.infrastructure.structs import msgspec
from dragon.runtime.credentials import Callers
from dragon.runtime.log import Once, runtime_log

log = runtime_log("web")

_LARGEST_REQUEST = 2**14
_BACKLOG = 128
_Address = tuple[str, int]
_IO_TIMEOUT_S = 5.0  # seconds to receive the request, and seconds to send the response


class Request(msgspec.Struct, frozen=True):
    """A GET request. Names of headers are in lower case. `ends` are the addresses of the caller and of the server."""

    path: str
    parameters: dict[str, str]
    headers: dict[str, str]
    ends: tuple[_Address, _Address]

    def has_token(self, token: str) -> bool:
        """Return whether the request has this bearer token."""
        return hmac.compare_digest(self.headers.get("authorization", "").encode(), f"Bearer {token}".encode())

    def is_trusted(self) -> bool:
        """Return whether the program that sent the request belongs to this process's user, or to root."""
        caller, server = (
            f"{int.from_bytes(socket.inet_aton(host), sys.byteorder):08X}:{port:04X}" for host, port in self.ends
        )
        for table in Path("/proc/net").glob("tcp*"):  # a caller may use a socket of IPv6
            for line in table.read_text().splitlines()[1:]:
                _, local, remote, *_, user, _, inode = line.split()[:10]
                # The kernel ascribes to root what no process has open any more, whose inode is 0.
                if local.endswith(caller) and remote.endswith(server) and inode != "0":
                    return int(user) in (0, os.geteuid())
        return False


class Response(msgspec.Struct, frozen=True):
    """The response to a request."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: str = "200 OK"
    headers: dict[str, str] = {}


Handler = Callable[[Request], Awaitable[Response]]


class Server:
    """Answers requests to a port of 127.0.0.1 until it is closed; each path has its handler."""

    def __init__(self, listener: socket.socket, routes: Mapping[str, Handler]) -> None:
        self.port: int = listener.getsockname()[1]
        self._routes = routes
        self._callers = Callers(listener, self._talk, Once(log, logging.DEBUG))  # browsers connect ahead

    def close(self) -> None:
        self._callers.close()

    async def _talk(self, connection: socket.socket, address: str) -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=_LARGEST_REQUEST)
        try:
            async with asyncio.timeout(_IO_TIMEOUT_S):
                received = await reader.readuntil(b"\r\n\r\n")
            ends = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
            _write(writer, await _answer(received, self._routes, ends))
            async with asyncio.timeout(_IO_TIMEOUT_S):
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as error:
            log.debug("the request of %s was not answered: %r", address, error)
        finally:
            writer.close()


async def serve(port: int, routes: Mapping[str, Handler]) -> Server:
    """Start a server at a port of 127.0.0.1 (0: any free one)."""
    return Server(socket.create_server(("127.0.0.1", port), backlog=_BACKLOG), routes)


async def _answer(head: bytes, routes: Mapping[str, Handler], ends: tuple[_Address, _Address]) -> Response:
    first, *lines = head.decode("latin-1").split("\r\n")
    method, _, rest = first.partition(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if method != "GET":
        return Response(b"only GET\n", status="405 Method Not Allowed")
    if not _is_here(host := headers.get("host", "")):
        told = f"this is not a server of {host!r}: use its address, or localhost\n"
        return Response(told.encode(), status="421 Misdirected Request")
    try:
        target = urlsplit(rest.partition(" ")[0])
    except ValueError as error:
        return Response(f"{error}\n".encode(), status="400 Bad Request")
    handler = routes.get(target.path)
    if handler is None:
        there = ", ".join(sorted(routes))
        return Response(f"not found; the paths are {there}\n".encode(), status="404 Not Found")
    return await _handled(handler, Request(target.path, dict(parse_qsl(target.query)), headers, ends))


async def _handled(handler: Handler, request: Request) -> Response:
    try:
        return await handler(request)
    except ValueError as error:
        return Response(f"{error}\n".encode(), status="400 Bad Request")
    except DragonError as error:
        return Response(f"{error}\n".encode(), status="503 Service Unavailable")
    except Exception as error:  # a bug: the client gets the error, and the next request is answered
        log.exception("%s cannot be answered", request.path)
        return Response(f"{type(error).__name__}: {error}\n".encode(), status="500 Internal Server Error")


def _is_here(host: str) -> bool:
    """Return whether a browser that requests this host can only mean this server."""
    name = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    if name.lower() in ("", "localhost"):
        return True
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _write(writer: asyncio.StreamWriter, response: Response) -> None:
    headers = {
        "Content-Type": response.content_type,
        "Content-Length": str(len(response.body)),
        "Connection": "close",
        "X-Content-Type-Options": "nosniff",
        **response.headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {response.status}\r\n{head}\r\n".encode() + response.body)
