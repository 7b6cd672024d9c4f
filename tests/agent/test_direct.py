"""The links of two agents in one process, with separate TCP connections for large payloads."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from ends import LARGE, SIZES, Ends, Fabrics, MakeFabrics, exchange, run
from hypothesis import given, settings

from dragon.agent.wire.direct import _GREETING, Direct


class Pair:
    """The connections of both agents. The first calls the second at `port`, if that is set."""

    def __init__(self, *, is_sealed: bool) -> None:
        self.is_sealed = is_sealed
        self.port = 0

    def __call__(self, ports: list[int]) -> Fabrics:
        first, second = (
            Direct(["127.0.0.1"], port, sealed=self.is_sealed) for port in (ports[0], self.port or ports[1])
        )
        self.made = [first, second]
        return first, second


def sealed() -> Pair:
    return Pair(is_sealed=True)


def plain() -> Pair:
    return Pair(is_sealed=False)


async def stands(ends: Ends, pair: Pair) -> None:
    """Send large payloads over the link until there are separate connections."""
    async with asyncio.timeout(10):
        while not all(end.sent and end.received for end in pair.made):
            await ends.echo(None, bytes(LARGE))


@pytest.mark.parametrize("make_pair", [sealed, plain])
@settings(max_examples=30, deadline=None)
@given(SIZES)
def test_payloads_of_any_size_arrive_whole_and_in_order(make_pair: Callable[[], Pair], sizes: list[int]) -> None:
    pair = make_pair()

    async def test(ends: Ends) -> None:
        await stands(ends, pair)
        before = pair.made[0].sent, pair.made[0].received
        large = await exchange(ends, sizes)
        assert (pair.made[0].sent, pair.made[0].received) == (before[0] + 2 * large, before[1] + large)

    run(test, pair)


def refused(pair: MakeFabrics, call: Callable[[Ends], bytes]) -> None:
    """Check that the agent closes the connection of a caller that sends these bytes, and continues."""

    async def test(ends: Ends) -> None:
        await ends.echo()
        reader, writer = await asyncio.open_connection("127.0.0.1", ends.port)
        writer.write(call(ends))
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await reader.readexactly(1000)
        writer.close()
        _, payload = await ends.echo(None, bytes(2 * LARGE))
        assert len(memoryview(payload)) == 2 * LARGE

    run(test, pair)


@pytest.mark.parametrize("make_pair", [sealed, plain])
def test_a_caller_without_the_token_is_refused(make_pair: Callable[[], Pair]) -> None:
    refused(make_pair(), lambda ends: _GREETING + b"12345678" + bytes(100))


def test_a_caller_with_the_token_but_without_the_key_is_refused() -> None:
    pair = sealed()

    def call(ends: Ends) -> bytes:
        (token,) = pair.made[1]._lanes
        return _GREETING + token.to_bytes(8, "little") * 100

    refused(pair, call)


Change = Callable[[bytes], bytes | None]


@asynccontextmanager
async def between(ends: Ends, pair: Pair, change: Change) -> AsyncIterator[None]:
    """Relay the payloads of the first agent through `change`, which can modify them or close the connection."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Change) -> None:
        while data := await reader.read(2**16):
            changed = change(data)
            if changed is None:
                break
            writer.write(changed)
        writer.close()

    async def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, onward = await asyncio.open_connection("127.0.0.1", ends.port)
        back = asyncio.ensure_future(pass_on(there, writer, bytes))
        await pass_on(reader, onward, change)
        back.cancel()
        writer.close()

    async with await asyncio.start_server(called, "127.0.0.1", 0) as server:
        pair.made[1]._port = server.sockets[0].getsockname()[1]
        while not pair.made[0]._lanes:
            await ends.echo()
        (lane,) = pair.made[0]._lanes.values()
        while not lane.open():
            await asyncio.sleep(0.001)
        yield
        for links in ends.links:
            links.close()


SECRET = b"confidential" * LARGE


async def echo_secret(ends: Ends) -> None:
    _, echoed = await ends.echo(None, SECRET)
    assert bytes(echoed) == SECRET


@pytest.mark.parametrize("make_pair", [sealed, plain])
def test_data_on_the_network_is_encrypted_unless_the_network_is_trusted(make_pair: Callable[[], Pair]) -> None:
    pair = make_pair()
    seen = bytearray()

    def look(data: bytes) -> bytes:
        seen.extend(data)
        return data

    async def test(ends: Ends) -> None:
        async with between(ends, pair, look):
            await echo_secret(ends)

    run(test, pair)
    assert len(seen) >= len(SECRET)
    assert (SECRET[:100] in seen) is (not pair.is_sealed)


def test_data_that_was_changed_on_the_network_is_refused_and_sent_over_the_link() -> None:
    pair = sealed()

    def flip(data: bytes) -> bytes:
        return data if len(data) < 1000 else data[:500] + bytes([data[500] ^ 1]) + data[501:]

    async def test(ends: Ends) -> None:
        async with between(ends, pair, flip):
            await echo_secret(ends)

    run(test, pair)


def test_payloads_stay_on_the_link_if_no_connection_is_possible() -> None:
    pair = sealed()
    with socket.create_server(("127.0.0.1", 0)) as closed:
        pair.port = closed.getsockname()[1]

    async def test(ends: Ends) -> None:
        for _ in range(3):
            await ends.echo(None, bytes(2 * LARGE))
        _, payload = await ends.echo(None, bytes(2 * LARGE))
        assert len(memoryview(payload)) == 2 * LARGE
        assert pair.made[0].sent == 0

    run(test, pair)


def test_what_a_broken_connection_lost_is_sent_again() -> None:
    pair = sealed()
    cuts = [True]

    def cut(data: bytes) -> bytes | None:
        return None if len(data) > 1000 and cuts and cuts.pop() else data

    async def test(ends: Ends) -> None:
        async with between(ends, pair, cut):
            await echo_secret(ends)
            assert not cuts

    run(test, pair)
