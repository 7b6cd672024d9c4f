"""The errors that an event loop reports."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest
import uvloop

from dragon.runtime.log import tell_loop_errors


def reported(caplog: pytest.LogCaptureFixture, error: Exception) -> list[str]:
    async def report() -> None:
        loop = asyncio.get_running_loop()
        tell_loop_errors(loop)
        loop.call_exception_handler({"message": "Fatal error on transport", "exception": error})

    with caplog.at_level(logging.WARNING):
        uvloop.run(report())
    return [record.message for record in caplog.records]


async def write_too_late() -> None:
    here, there = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=here)
    with there:
        transport.abort()
        await asyncio.sleep(0.01)
        transport.write_eof()


def test_an_error_of_a_closed_connection_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError) as closed:
        uvloop.run(write_too_late())
    assert reported(caplog, closed.value) == []


def test_other_errors_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    assert reported(caplog, ValueError("no such thing")) == ["Fatal error on transport"]


def test_a_repeated_error_is_reported_once_and_does_not_keep_the_loop_busy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = 0

    def fail() -> None:
        nonlocal calls
        calls += 1
        raise OSError(24, "Too many open files")

    async def read() -> None:
        loop = asyncio.get_running_loop()
        tell_loop_errors(loop)
        here, there = socket.socketpair()
        with here, there:
            there.send(b"x")
            loop.add_reader(here, fail)
            await asyncio.sleep(1)
            loop.remove_reader(here)

    with caplog.at_level(logging.WARNING):
        uvloop.run(read())
    assert len(caplog.records) == 1
    assert 10 <= calls < 100
