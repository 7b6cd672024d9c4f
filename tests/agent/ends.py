"""The links of two agents in one process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import uvloop
from hypothesis import strategies as st

from conftest import described
from dragon.agent.wire.bulk import Fabric
from dragon.agent.wire.direct import Direct
from dragon.agent.wire.link import Listener
from dragon.agent.wire.links import Links
from dragon.agent.wire.responses import Answer
from dragon.infrastructure.membership import Member
from dragon.runtime.credentials import Authority, client_context, node_name, server_context
from dragon.runtime.protocol.agents import Notice
from dragon.runtime.protocol.jobs import Exchange, LookUp
from dragon.runtime.protocol.processes import AwaitEnd
from dragon.runtime.protocol.request import Request, decode_answer
from dragon.runtime.run import this_run

LARGE = 128 * 1024  # bytes of the smallest payload that is sent outside the link
SIZES = st.lists(
    st.one_of(st.integers(0, 2000), st.integers(LARGE - 2, LARGE + 2), st.integers(LARGE, 2**23)), max_size=20
)
PATTERN = bytes(range(251))
AUTHORITY = Authority.create()
KEYS = [(AUTHORITY.certificate, *AUTHORITY.issue(node_name(index))) for index in range(2)]

Fabrics = tuple[Fabric | None, Fabric | None]
UNUSED = Direct([], 0, sealed=True)
MakeFabrics = Callable[[list[int]], Fabrics]  # by the ports at which they listen


class Ends:
    """The links of two agents. They reply to requests of `ask()`, do not reply to those of `wait()`, and keep the
    notifications that they receive.
    """

    def __init__(self, make_fabrics: MakeFabrics) -> None:
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        self.sockets = listeners
        ports = [listener.getsockname()[1] for listener in listeners]
        self.port = ports[1]
        fabrics = make_fabrics(ports)
        members = {
            index: Member(node=described(index), addresses=["127.0.0.1"], port=listener.getsockname()[1])
            for index, listener in enumerate(listeners)
        }
        self.told: list[tuple[int, Notice]] = []
        self.messages: list[tuple[int, int, int, Any]] = []
        self.log: list[list[tuple[str, int, int]]] = [[], []]  # by sender: what was handled
        self.undone: list[object] = []  # requests whose answers were lost
        self.cancelled = asyncio.Event()
        self.broken = asyncio.Event()
        self.links = [self._links(index, members, fabric) for index, fabric in enumerate(fabrics)]
        self.listeners = [
            Listener(listener, server_context(*keys), links.accept, fabric if isinstance(fabric, Direct) else UNUSED)
            for listener, links, keys, fabric in zip(listeners, self.links, KEYS, fabrics, strict=True)
        ]

    def _links(self, index: int, members: dict[int, Member], fabric: Fabric | None) -> Links:
        return Links(
            index,
            members,
            client_context(*KEYS[index]),
            self._serve,
            self._noticed,
            self._received,
            lambda node, reason: self.broken.set(),
            fabric,
        )

    def _noticed(self, node: int, notice: Notice) -> None:
        self.told.append((node, notice))
        self.log[node].append(("notice", getattr(notice, "pid", 0), 0))

    def _received(self, node: int, flow: int, kind: int, data: Any) -> None:
        self.messages.append((node, flow, kind, data))
        self.log[node].append(("message", flow, memoryview(data).nbytes))

    def _serve(
        self, node: int, request: Request[object], payload: Any, respond: Callable[..., None]
    ) -> Callable[[], None] | None:
        match request:
            case AwaitEnd():
                return self.cancelled.set
            case LookUp():
                respond(None, b"", LookupError("there is no such thing"))
            case Exchange():
                number = request.data if isinstance(request.data, int) else 0
                self.log[node].append(("asked", number, memoryview(payload).nbytes))
                respond({request.node: request.data}, payload, None, lambda: self.undone.append(request.data))
                if request.data == "break":
                    self.break_connections()
        return None

    def ask(self, value: object = None, payload: Any = b"", of: int = 1) -> asyncio.Future[Answer]:
        """Request a value and a payload from the other agent."""
        return self.links[1 - of].call(of, Exchange("job", "key", [], 0, value), payload)

    async def echo(self, value: object = None, payload: Any = b"", of: int = 1) -> tuple[object, Any]:
        """Return the value and the payload that the other agent sends back."""
        return told(await self.ask(value, payload, of))

    def break_connections(self, of: Sequence[int] = (0, 1)) -> None:
        """Break the connections between the agents: what is in flight is lost. With one of them in `of`, that one
        closes them, and the other may still receive something."""
        for node in of:
            for session in self.links[node]._sessions.values():
                for link in list(session.links):
                    link.transport.abort()

    def listen_again(self, node: int) -> None:
        """Listen again at the port of an agent whose listener was closed."""
        listener = socket.create_server(("127.0.0.1", self.links[0].members[node].port))
        self.listeners[node] = Listener(listener, server_context(*KEYS[node]), self.links[node].accept, UNUSED)

    def wait(self) -> asyncio.Future[Answer]:
        """Send a request that is never answered."""
        return self.links[0].call(1, AwaitEnd(1))


def told(answer: Answer) -> tuple[object, Any]:
    """Return the value and the payload of a reply."""
    return decode_answer(Exchange("job", "key", [], 0, None), answer[0])[0], answer[1]


def run(test: Callable[[Ends], Awaitable[None]], make_fabrics: MakeFabrics = lambda ports: (None, None)) -> None:
    this_run()  # large payloads are received in the arena

    async def main() -> None:
        ends = Ends(make_fabrics)
        try:
            async with asyncio.timeout(30):
                await test(ends)
        finally:  # else a test that fails does not end, as the links connect again and again
            for links, listener in zip(ends.links, ends.listeners, strict=True):
                links.close()
                listener.close()
        await asyncio.sleep(0.01)

    uvloop.run(main())


async def exchange(ends: Ends, sizes: list[int]) -> int:
    """Send payloads of these sizes as messages, and as requests that are answered with the same payload, and assert
    that all arrive whole and in order. Return the total size of the large ones in bytes.
    """
    payloads = [(PATTERN * (size // 251 + 2))[place : place + size] for place, size in enumerate(sizes)]
    for payload in payloads:
        ends.links[0].send_messages(1, 7, 3, payload)
    answers = [ends.ask(payload=payload) for payload in payloads]
    for payload, (_, echoed) in zip(payloads, await asyncio.gather(*answers), strict=True):
        assert bytes(echoed) == payload
    assert [bytes(entry[3]) for entry in ends.messages] == payloads
    return sum(size for size in sizes if size >= LARGE)
