"""What agents send each other, as it is on the network: encrypted, and refused where it was changed."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
from ends import LARGE, SIZES, Ends, exchange, run
from hypothesis import given, settings

from conftest import Site

SECRET = b"confidential" * LARGE

Change = Callable[[bytes], bytes | None]


@pytest.mark.parametrize("plain", [False, True])
@settings(max_examples=30, deadline=None)
@given(SIZES)
def test_payloads_of_any_size_arrive_whole_and_in_order(plain: bool, sizes: list[int]) -> None:
    async def test(ends: Ends) -> None:
        await exchange(ends, sizes)

    run(test, plain=plain)


@asynccontextmanager
async def between(ends: Ends, change: Change) -> AsyncIterator[None]:
    """Relay what the first agent sends through `change`, which can modify it or close the connection."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Change) -> None:
        try:
            while data := await reader.read(2**16):
                changed = change(data)
                if changed is None:
                    break
                writer.write(changed)
        except (ConnectionError, RuntimeError):  # uvloop raises the latter for a closed transport
            pass
        writer.close()

    async def called(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, onward = await asyncio.open_connection("127.0.0.1", ends.port)
        relayed.append(asyncio.gather(pass_on(there, writer, bytes), pass_on(reader, onward, change)))
        await relayed[-1]

    relayed: list[asyncio.Future[object]] = []
    server = await asyncio.start_server(called, "127.0.0.1", 0)
    there = ends.links[0].members[1]
    ends.links[0].members[1] = msgspec.structs.replace(there, port=server.sockets[0].getsockname()[1])
    yield
    server.close()
    for links in ends.links:
        links.close()
    await asyncio.gather(*relayed)


async def echo_secret(ends: Ends) -> None:
    _, echoed = await ends.echo(None, SECRET)
    assert bytes(echoed) == SECRET


@pytest.mark.parametrize("plain", [False, True])
def test_data_on_the_network_is_encrypted_unless_the_network_is_trusted(plain: bool) -> None:
    seen = bytearray()

    def look(data: bytes) -> bytes:
        seen.extend(data)
        return data

    async def test(ends: Ends) -> None:
        async with between(ends, look):
            await echo_secret(ends)

    run(test, plain=plain)
    assert len(seen) >= len(SECRET)
    assert (SECRET[:100] in seen) is plain


def test_python_encrypts_where_there_is_no_libcrypto(site: Site) -> None:
    program = """
    from dragon import _core

    _core.seal_with_python()
    from test_sealed import test_data_that_was_changed_on_the_network_is_refused_and_sent_again as changed
    from test_sealed import test_what_a_broken_connection_lost_is_sent_again as broken

    changed()
    broken()
    print("ok")
    """
    done = site.python(program, env={"PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.stdout == "ok\n", done.stderr


def test_data_that_was_changed_on_the_network_is_refused_and_sent_again() -> None:
    changes = [True]

    def flip(data: bytes) -> bytes:
        if len(data) < 60_000 or not changes:
            return data
        changes.pop()
        return data[:500] + bytes([data[500] ^ 1]) + data[501:]

    async def test(ends: Ends) -> None:
        async with between(ends, flip):
            await echo_secret(ends)
        assert not changes

    run(test)


def test_what_a_broken_connection_lost_is_sent_again() -> None:
    cuts = [True]

    def cut(data: bytes) -> bytes | None:
        return None if len(data) > 10_000 and cuts and cuts.pop() else data

    async def test(ends: Ends) -> None:
        async with between(ends, cut):
            await echo_secret(ends)
            assert not cuts

    run(test)
