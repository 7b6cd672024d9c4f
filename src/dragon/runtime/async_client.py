"""Requests to this node's agent from an event loop: any number at a time, over one connection for each loop."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import threading
import weakref
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from dragon.infrastructure.errors import RunEndedError
from dragon.infrastructure.private import connect_within
from dragon.runtime.agent_client import close_with, error_named
from dragon.runtime.protocol.request import (
    Request,
    decode_numbered_reply,
    decode_reply,
    encode_numbered,
    encode_request,
)
from dragon.runtime.protocol.run import AskSeveral
from dragon.runtime.run import this_run

_Answer = TypeVar("_Answer")

_local = threading.local()


async def ask(request: Request[_Answer]) -> _Answer:
    """Send a request to this node's agent and return the reply."""
    return cast(_Answer, await _line().ask(request))


class _Asked(NamedTuple):
    request: Request[Any]
    answer: asyncio.Future[Any]


class _Line:
    """One event loop's connection to the agent, which is closed with the loop and is not used by a forked child."""

    def __init__(self, loop: asyncio.AbstractEventLoop, folder: Path) -> None:
        self.key = (os.getpid(), folder)
        self.loop = weakref.ref(loop)
        self._folder = folder
        self._numbers = itertools.count(1)
        self._asked: dict[int, _Asked] = {}
        self._received, self._to_send = bytearray(), bytearray()
        self._greeted = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        close_with(self, self._socket)
        connect_within(folder, "agent", self._socket)
        self._socket.setblocking(False)
        loop.add_reader(self._socket, self._read)
        self._send(encode_request(AskSeveral()))

    def __del__(self) -> None:
        self._socket.close()

    @property
    def is_open(self) -> bool:
        """Whether the connection is open."""
        return self._socket.fileno() >= 0

    async def ask(self, request: Request[Any]) -> object:
        """Send a request and return the reply; see ask() of the module."""
        number, answer = next(self._numbers), asyncio.get_running_loop().create_future()
        self._asked[number] = _Asked(request, answer)
        self._send(encode_numbered(number, request))
        try:
            return await answer
        except asyncio.CancelledError:
            if number in self._asked:
                self._send(encode_numbered(number, None))
            raise

    def _send(self, data: bytes) -> None:
        if not self._to_send:
            asyncio.get_running_loop().add_writer(self._socket, self._flush)
        self._to_send += data

    def _flush(self) -> None:
        try:
            while self._to_send:
                del self._to_send[: self._socket.send(self._to_send)]
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        asyncio.get_running_loop().remove_writer(self._socket)

    def _read(self) -> None:
        try:
            data = self._socket.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError as error:
            self._lose(error)
            return
        if not data:
            self._lose(EOFError("the connection was closed"))
            return
        self._received += data
        while len(self._received) >= 4:
            size = int.from_bytes(self._received[:4], "little")
            if len(self._received) < 4 + size:
                return
            body = bytes(memoryview(self._received)[4 : 4 + size])
            del self._received[: 4 + size]
            if self._greeted:
                self._take(body)
            else:
                self._greeted = True  # the answer to AskSeveral has no number

    def _take(self, body: bytes) -> None:
        number, encoded = decode_numbered_reply(body)
        asked = self._asked.pop(number)
        reply = decode_reply(asked.request, encoded)
        if asked.answer.done():  # it was cancelled
            return
        if reply.error is not None:
            asked.answer.set_exception(error_named(*reply.error))
        else:
            asked.answer.set_result(reply.value)

    def _lose(self, error: Exception) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        loop.remove_writer(self._socket)
        self._socket.close()
        unanswered, self._asked = list(self._asked.values()), {}
        for asked in unanswered:
            if not asked.answer.done():
                told = f"the agent of the run in {self._folder} does not answer: {error}"
                asked.answer.set_exception(RunEndedError(told))


def _line() -> _Line:
    loop, folder = asyncio.get_running_loop(), this_run().folder
    known: _Line | None = getattr(_local, "line", None)
    if known is None or known.key != (os.getpid(), folder) or known.loop() is not loop or not known.is_open:
        try:
            known = _local.line = _Line(loop, folder)
        except OSError as error:
            this_run().check()
            raise RunEndedError(f"the agent of the run in {folder} does not answer: {error}") from error
    return known
