"""The links of two agents in one process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import uvloop
from hypothesis import strategies as st

from conftest import described
from dragon import _core
from dragon.agent.wire.handshake import Fabric
from dragon.agent.wire.links import Links
from dragon.infrastructure.membership import Member
from dragon.infrastructure.messages import decoder_of
from dragon.runtime.credentials import Authority, client_context, node_name, server_context
from dragon.runtime.protocol.agents import Exchange, LookUp, Outside, SignalProcess
from dragon.runtime.protocol.request import Request, decode_answer
from dragon.runtime.protocol.run import AwaitEnd
from dragon.runtime.rpc import Answered, decode_frame
from dragon.runtime.run import this_run

LARGE = 128 * 1024  # bytes of the smallest payload that goes over a fabric
SIZES = st.lists(
    st.one_of(st.integers(0, 2000), st.integers(LARGE - 2, LARGE + 2), st.integers(LARGE, 2**23)), max_size=20
)
PATTERN = bytes(range(251))
AUTHORITY = Authority()
KEYS = [(AUTHORITY.certificate, *AUTHORITY.issue(node_name(index))) for index in range(2)]

Fabrics = tuple[Fabric | None, Fabric | None]
Answer = tuple[msgspec.Raw, Any]

decode = decoder_of(AwaitEnd | LookUp | Exchange | SignalProcess | Outside).decode


class LoadedWire:
    """A wire whose messages carry a payload."""

    def __init__(self, wire: _core.Wire) -> None:
        self._wire = wire
        self.load: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)

    def send(self, node: int, message: bytes, payload: None, kept: bool) -> int:
        return self._wire.send(node, message, self.load, kept)


class LoadedLinks(Links):
    """Links whose requests and answers carry payloads."""

    payload: Any = b""  # of the message that is being handled

    def load(self) -> None:
        self.wire: Any = LoadedWire(self.wire)
        self.payloads: dict[int, Any] = {}  # of answers, by number

    def _hear(self, event: _core.WireEvent) -> None:
        self.payload = event[-1] or b""
        try:
            frame: object = decode_frame(event[-2])
        except msgspec.MsgspecError:
            frame = None
        if isinstance(frame, Answered):
            self.payloads[frame.number] = self.payload
        super()._hear(event)
        self.wire.load = None

    def ask(self, node: int, request: Request[object], payload: Any) -> asyncio.Future[Answer]:
        """Send a request with a payload. Returns a future of the answer and its payload."""
        self.wire.load = payload
        asked = self.call(node, request)
        self.wire.load = None
        session = self._sessions.get(node)
        return asyncio.ensure_future(self._answer(asked, session._asked if session is not None else 0))

    async def _answer(self, asked: asyncio.Future[msgspec.Raw], number: int) -> Answer:
        return await asked, self.payloads.pop(number)


class Ends:
    """The links of two agents. They reply to requests of `ask()`, do not reply to those of `wait()`, and keep the
    notifications that they receive.
    """

    def __init__(self, fabrics: Fabrics, *, plain: bool) -> None:
        self.sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        members = {
            index: Member(node=described(index), addresses=["127.0.0.1"], port=listener.getsockname()[1])
            for index, listener in enumerate(self.sockets)
        }
        self.port = members[1].port
        self.told: list[tuple[int, Request[object]]] = []
        self.log: list[list[tuple[str, int, int]]] = [[], []]  # by sender: what was handled
        self.cancelled = asyncio.Event()
        self.broken = asyncio.Event()
        self.links = [self._links(index, members, fabric, plain) for index, fabric in enumerate(fabrics)]
        for listener, links in zip(self.sockets, self.links, strict=True):
            links.listen(listener)

    def _links(self, index: int, members: dict[int, Member], fabric: Fabric | None, plain: bool) -> LoadedLinks:
        contexts = client_context(*KEYS[index]), server_context(*KEYS[index])
        links = LoadedLinks(index, members, contexts, self._serve, fabric, plain=plain)
        links.load()
        links.is_broken = lambda node: self.broken.set()
        return links

    def _serve(self, node: int, body: bytes | msgspec.Raw) -> object:
        request, links = decode(body), self.links[1 - node]
        match request:
            case AwaitEnd():
                waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                waiting.add_done_callback(lambda _: self.cancelled.set())
                return waiting
            case LookUp():
                raise LookupError("there is no such thing")
            case Exchange():
                number = request.data if isinstance(request.data, int) else 0
                self.log[node].append(("asked", number, memoryview(links.payload).nbytes))
                links.wire.load = links.payload
                return {request.node: request.data}
        self.told.append((node, request))
        self.log[node].append(("notice", getattr(request, "puid", 0), 0))
        return None

    def ask(self, value: object = None, payload: Any = b"", of: int = 1) -> asyncio.Future[Answer]:
        """Request a value and a payload from the other agent."""
        return self.links[1 - of].ask(of, Exchange("job", "key", [], 0, value), payload)

    async def echo(self, value: object = None, payload: Any = b"", of: int = 1) -> tuple[object, Any]:
        """Return the value and the payload that the other agent sends back."""
        return told(await self.ask(value, payload, of))

    def break_connections(self, of: Sequence[int] = (0, 1)) -> None:
        """Break the connections between the agents: what is in flight is lost. With one of them in `of`, that one
        closes them, and the other may still receive something."""
        for node in of:
            for connection in self.links[node].wire.connections():
                self.links[node].wire.abort(connection, "a test broke it")

    def lose(self, node: int, reason: str) -> None:
        """Let the other agent know that a node is lost."""
        self.links[1 - node].leave(node, reason, 1)
        self.links[1 - node].forget(node)

    def wait(self) -> asyncio.Future[msgspec.Raw]:
        """Send a request that is never answered."""
        return self.links[0].call(1, AwaitEnd(1))


def told(answer: Answer) -> tuple[object, Any]:
    """Return the value and the payload of a reply."""
    return decode_answer(Exchange("job", "key", [], 0, None), answer[0])[0], answer[1]


def none() -> Fabrics:
    return None, None


def run(test: Callable[[Ends], Awaitable[None]], fabrics: Callable[[], Fabrics] = none, *, plain: bool = False) -> None:
    """Run a test with two ends, whose fabrics are made in the event loop."""
    this_run()  # large payloads are received in the arena

    async def main() -> None:
        ends = Ends(fabrics(), plain=plain)
        try:
            async with asyncio.timeout(30):
                await test(ends)
        finally:  # else a test that fails does not end, as the links connect again and again
            for links in ends.links:
                links.close()

    uvloop.run(main())


async def exchange(ends: Ends, sizes: list[int]) -> int:
    """Send payloads of these sizes with requests that are answered with the same payload, and assert that all arrive
    whole and in order. Return the total size of the large ones in bytes.
    """
    payloads = [(PATTERN * (size // 251 + 2))[place : place + size] for place, size in enumerate(sizes)]
    before = len(ends.log[0])
    answers = [ends.ask(number, payload=payload) for number, payload in enumerate(payloads)]
    for payload, (_, echoed) in zip(payloads, await asyncio.gather(*answers), strict=True):
        assert bytes(echoed) == payload
    assert ends.log[0][before:] == [("asked", number, size) for number, size in enumerate(sizes)]
    return sum(size for size in sizes if size >= LARGE)
