"""Two agents' links with TCP connections of their own for large payloads, in one process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
from ends import KEYS, Ends, Fabrics, MakeFabrics, run
from hypothesis import given, settings
from hypothesis import strategies as st

from dragon.agent.direct import LANE, Direct
from dragon.infrastructure.errors import NodeLostError
from dragon.runtime.credentials import Authority, Contexts, node_name

LARGE = 256 * 1024
PATTERN = bytes(range(251))
STRANGERS = Authority.create()


class Pair:
    """Makes both agents' ends, and keeps them."""

    def __init__(self, *keys: tuple[bytes, bytes, bytes] | None) -> None:
        self.contexts = [Contexts.of(*key) if key else None for key in keys]

    def __call__(self, ports: list[int]) -> Fabrics:
        pairs = zip(ports, self.contexts, strict=True)
        self.made = [Direct(["127.0.0.1"], port, contexts) for port, contexts in pairs]
        return self.made[0], self.made[1]


def sealed() -> Pair:
    return Pair(*KEYS)


def plain() -> Pair:
    return Pair(None, None)


async def stands(ends: Ends, pair: Pair) -> None:
    """The first large payloads go over the link, until there are connections."""
    async with asyncio.timeout(10):
        while not all(end.sent and end.received for end in pair.made):
            await ends.links[0].call(1, "echo", {}, bytes(LARGE))


sizes = st.lists(
    st.one_of(st.integers(0, 2000), st.integers(LARGE - 2, LARGE + 2), st.integers(LARGE, 2**23)), max_size=20
)


@pytest.mark.parametrize("make_pair", [sealed, plain])
@settings(max_examples=30, deadline=None)
@given(sizes)
def test_payloads_of_any_size_arrive_whole_and_in_order(make_pair: Callable[[], Pair], sizes: list[int]) -> None:
    pair = make_pair()

    async def test(ends: Ends) -> None:
        await stands(ends, pair)
        before = pair.made[0].sent, pair.made[0].received
        payloads = [(PATTERN * (size // 251 + 2))[place : place + size] for place, size in enumerate(sizes)]
        for payload in payloads:
            ends.links[0].send_messages(1, 7, 3, payload)
        answers = [ends.links[0].call(1, "echo", {}, payload) for payload in payloads]
        for payload, (_, echoed) in zip(payloads, await asyncio.gather(*answers), strict=True):
            assert bytes(echoed) == payload
        assert [bytes(entry[3]) for entry in ends.told] == payloads
        large = sum(size for size in sizes if size >= LARGE)
        assert (pair.made[0].sent, pair.made[0].received) == (before[0] + 2 * large, before[1] + large)

    run(test, pair)


def refused(pair: MakeFabrics, call: Callable[[Ends], bytes]) -> None:
    """A caller who says that is hung up on, and the agents go on."""

    async def test(ends: Ends) -> None:
        await ends.links[0].call(1, "echo", {})
        reader, writer = await asyncio.open_connection("127.0.0.1", ends.port)
        writer.write(call(ends))
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1000)
        writer.close()
        _, payload = await ends.links[0].call(1, "echo", {}, bytes(2 * LARGE))
        assert len(memoryview(payload)) == 2 * LARGE

    run(test, pair)


@pytest.mark.parametrize("make_pair", [sealed, plain])
def test_a_caller_that_does_not_know_the_number_is_refused(make_pair: Callable[[], Pair]) -> None:
    refused(make_pair(), lambda ends: LANE + b"12345678" + bytes(100))


def test_the_number_without_a_certificate_is_not_enough() -> None:
    pair = sealed()

    def call(ends: Ends) -> bytes:
        (token,) = pair.made[1]._lanes
        return LANE + token.to_bytes(8, "little") + bytes(1000)

    refused(pair, call)


@pytest.mark.parametrize(
    "keys", [KEYS[0], (STRANGERS.certificate, *STRANGERS.issue(node_name(1)))], ids=["another node", "another run"]
)
def test_who_is_not_the_other_node_of_the_link_gets_no_payloads(keys: tuple[bytes, bytes, bytes]) -> None:
    pair = Pair(KEYS[0], keys)

    async def test(ends: Ends) -> None:
        for _ in range(3):
            _, payload = await ends.links[0].call(1, "echo", {}, bytes(2 * LARGE))
            assert len(memoryview(payload)) == 2 * LARGE
        assert [end.received for end in pair.made] == [0, 0]

    run(test, pair)


def test_without_a_way_for_connections_payloads_stay_on_the_link() -> None:
    def nowhere(ports: list[int]) -> Fabrics:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        first, second = (Direct(["127.0.0.1"], port, Contexts.of(*keys)) for keys in KEYS)
        return first, second

    async def test(ends: Ends) -> None:
        for _ in range(3):
            _, payload = await ends.links[0].call(1, "echo", {}, bytes(2 * LARGE))
            assert len(memoryview(payload)) == 2 * LARGE

    run(test, nowhere)


def test_a_connection_that_ends_takes_the_link_with_it_and_says_why() -> None:
    pair = sealed()

    async def test(ends: Ends) -> None:
        await stands(ends, pair)
        (lane,) = pair.made[1]._lanes.values()
        receiving = lane._receiving
        assert receiving is not None
        receiving.cancel()
        future = ends.links[0].call(1, "echo", {}, bytes(20 * LARGE))
        with pytest.raises(NodeLostError, match="a payload was lost"):
            await future
        # The next request connects again.
        assert (await ends.links[0].call(1, "echo", {"still": "here"}))[0] == {"still": "here"}

    run(test, pair)
