"""What an event loop reports of itself."""

from __future__ import annotations

import asyncio
import logging
import socket

import pytest
import uvloop

from dragon.runtime.loop_errors import tell_loop_errors


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


def test_a_connection_that_is_closed_already_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError) as closed:
        uvloop.run(write_too_late())
    assert reported(caplog, closed.value) == []


def test_other_errors_are_told(caplog: pytest.LogCaptureFixture) -> None:
    assert reported(caplog, ValueError("no such thing")) == ["Fatal error on transport"]
