"""Where Prometheus gets a run's metrics: http://127.0.0.1:PORT/metrics, on this machine only."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from dragon.agent.telemetry.exposition import CONTENT_TYPE, Family, render
from dragon.infrastructure import parameters
from dragon.runtime.log import runtime_log

if TYPE_CHECKING:
    from dragon.agent.server import Agent

__all__ = ["open_endpoint", "page_of"]

log = runtime_log("telemetry")

_LARGEST_REQUEST = 2**14
_PATIENCE = 5.0

Page = Callable[[], Awaitable[bytes]]


async def page_of(agent: Agent) -> bytes:
    """The metrics of all nodes of an agent's run."""
    own = agent.telemetry.families()
    others = await agent.cluster.of_others("telemetry.families", {}) if agent.cluster is not None else []
    # Beside the loop: with hundreds of nodes it takes a few tenths of a second.
    return await asyncio.to_thread(lambda: render([*own, *msgspec.convert(others, list[Family])]))


async def open_endpoint(page: Page) -> asyncio.Server | None:
    """Serve what `page` gives, at the port that the environment says, and say where on stderr.

    A port that cannot be had is said in the log, and is no reason not to run.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(await _answer(request, page))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError) as error:
            log.debug("somebody who asked for metrics did not get them: %r", error)
        finally:
            writer.close()

    try:
        port = parameters.telemetry_port()
        server = await asyncio.start_server(serve, "127.0.0.1", port, limit=_LARGEST_REQUEST)
    except (OSError, ValueError) as error:
        log.warning("metrics are not served: %s; try another --telemetry-port", error)
        return None
    chosen = server.sockets[0].getsockname()[1]
    print(f"dragon: metrics are at http://127.0.0.1:{chosen}/metrics", file=sys.stderr, flush=True)
    return server


async def _answer(request: bytes, page: Page) -> bytes:
    method, _, rest = request.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0]
    if method != b"GET":
        return _response("405 Method Not Allowed", b"only GET\n", "text/plain")
    if path != b"/metrics":
        return _response("404 Not Found", b"the metrics are at /metrics\n", "text/plain")
    return _response("200 OK", await page(), CONTENT_TYPE)


def _response(status: str, body: bytes, content_type: str) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    return head.encode() + b"\r\n" + body
