"""The server of a run's pages serves them after any input to its port."""

from __future__ import annotations

import asyncio
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dragon.web.http import Request, Response, serve
from fuzz.mutation import EXAMPLES, mutated

ASKED = [
    b"GET /page?query=up&start=1&end=2.5&step=15s HTTP/1.1\r\nHost: localhost:9090\r\nAccept: */*\r\n\r\n",
    b"GET /page HTTP/1.0\r\n\r\n",
    b"POST /page HTTP/1.1\r\nHost: [::1]\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n",
    b"GET /%70age?a=%ff&a=%00;b=+#c HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://elsewhere\r\nCookie: a=b\r\n\r\n",
    b"GET http://localhost/page HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server that runs in a thread."""
    started: Future[tuple[int, Callable[[], object]]] = Future()

    async def page(request: Request) -> Response:
        return Response(b"the page")

    async def serving() -> None:
        server = await serve(0, {"/page": page})
        over = asyncio.Event()
        loop = asyncio.get_running_loop()
        started.set_result((server.port, lambda: loop.call_soon_threadsafe(over.set)))
        await over.wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serving()))  # it ends the requests that are still open
    thread.start()
    port, stop = started.result(30)
    yield port
    stop()
    thread.join()


@settings(max_examples=EXAMPLES, deadline=None)
@given(data=mutated(ASKED), ends=st.booleans())
def test_pages_are_served_after_invalid_input(port: int, data: bytes, ends: bool) -> None:
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        try:
            stranger.sendall(data)
            if ends:
                stranger.shutdown(socket.SHUT_WR)
        except ConnectionError:
            pass  # it was refused before its end
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/page", timeout=30) as answer:
            assert answer.read() == b"the page"
