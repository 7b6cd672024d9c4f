"""Payloads that are sent in one direction over a connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from dragon.agent.wire.direct import KEY_SIZE, Clear, Coding, OneWay, Sealed

SIZES = st.lists(st.one_of(st.integers(1, 2000), st.integers(2**19 - 1, 2**19 + 1), st.integers(1, 2**22)), max_size=8)


def sealed() -> Coding:
    return Sealed(bytes(KEY_SIZE))


def pair(make_coding: Callable[[], Coding], lost: Callable[[OSError], None]) -> tuple[OneWay, OneWay]:
    """Return both ends of a connection."""
    first, second = socket.socketpair()
    first.setblocking(False)
    second.setblocking(False)
    return (
        OneWay(first, make_coding().outward, lost, is_outward=True),
        OneWay(second, make_coding().inward, lost, is_outward=False),
    )


@pytest.mark.parametrize("make_coding", [Clear, sealed])
@settings(max_examples=30, deadline=None)
@given(SIZES)
def test_payloads_arrive_in_order_and_their_buffers_are_released(
    make_coding: Callable[[], Coding], sizes: list[int]
) -> None:
    async def test() -> None:
        outward, inward = pair(make_coding, pytest.fail)
        payloads = [bytearray([number]) * size for number, size in enumerate(sizes)]
        memories = [bytearray(size) for size in sizes]
        through = asyncio.Semaphore(0)
        for payload, memory in zip(payloads, memories, strict=True):
            outward.add(memoryview(payload), through.release)
            inward.add(memoryview(memory), through.release)
        async with asyncio.timeout(30):
            for _ in range(2 * len(sizes)):
                await through.acquire()
        assert memories == payloads
        for each in payloads + memories:
            each.clear()  # a BufferError where something still refers to it
        outward.close()
        inward.close()

    uvloop.run(test())


@pytest.mark.parametrize("make_coding", [Clear, sealed])
def test_a_connection_that_ends_within_a_payload_is_reported(make_coding: Callable[[], Coding]) -> None:
    async def test() -> None:
        failures: asyncio.Queue[OSError] = asyncio.Queue()
        outward, inward = pair(make_coding, failures.put_nowait)
        inward.add(memoryview(bytearray(2**24)), lambda: pytest.fail("it is whole"))
        outward.add(memoryview(bytes(2**24)), lambda: pytest.fail("all of it was sent"))
        outward.close()
        async with asyncio.timeout(30):
            assert isinstance(await failures.get(), ConnectionResetError)

    uvloop.run(test())


def test_data_sealed_with_another_key_is_refused() -> None:
    async def test() -> None:
        failures: asyncio.Queue[OSError] = asyncio.Queue()
        keys = iter([bytes(KEY_SIZE), b"\1" * KEY_SIZE])
        outward, inward = pair(lambda: Sealed(next(keys)), failures.put_nowait)
        inward.add(memoryview(bytearray(1000)), lambda: pytest.fail("it was taken"))
        outward.add(memoryview(bytes(1000)), lambda: None)
        async with asyncio.timeout(30):
            assert isinstance(await failures.get(), ConnectionAbortedError)
        outward.close()

    uvloop.run(test())
