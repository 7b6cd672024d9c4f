"""Requests to this node's agent, one connection per thread."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, cast

from dragon import _core
from dragon.infrastructure.ddict_errors import DDICT_ERRORS
from dragon.infrastructure.errors import DestroyedError, NodeLostError, NotSupportedError, RunEndedError
from dragon.infrastructure.private import connect_within
from dragon.infrastructure.system import is_of_handler
from dragon.runtime import inspection
from dragon.runtime.protocol.request import Request, decode_reply, encode_request
from dragon.runtime.run import Run, this_run

_HEAD = 4  # bytes before a reply, with its size
_MOST = 256 * 1024  # bytes that are received at once

_Answer = TypeVar("_Answer")

_local = threading.local()
_ERRORS: dict[str, type[Exception]] = {
    error.__name__: error
    for error in (
        AssertionError,
        DestroyedError,
        EOFError,
        IndexError,
        LookupError,
        MemoryError,
        NodeLostError,
        NotSupportedError,
        RuntimeError,
        ValueError,
    )
}
_ERRORS |= DDICT_ERRORS


_in_agent = False


def forbid_asking() -> None:
    """Make ask() fail in this process, which is the agent: it would wait for its own reply without end."""
    global _in_agent
    _in_agent = True


class Unwanted(Exception):
    """The reply is no longer wanted."""


def ask(request: Request[_Answer], descriptors: Sequence[int] = (), deadline: float | None = None) -> _Answer:
    """Send a request to this node's agent and return the reply."""
    run = this_run()
    if _in_agent:
        raise ValueError(f"node {run.node} was given an object of another node where one of its own is needed")
    connection = _taken(run.folder)
    try:
        _send(connection.socket, request, descriptors)
        answer = decode_reply(request, _received(connection.socket, deadline))
    except BaseException as error:
        connection.socket.close()  # this cancels the request
        if isinstance(error, (OSError, EOFError)) and not is_of_handler(error):
            raise _no_answer(run, error) from error
        raise
    _local.connection = connection
    if answer.error is not None:
        raise error_named(*answer.error)
    return cast(_Answer, answer.value)  # a reply without an error has a value


def _received(connection: socket.socket, deadline: float | None) -> bytearray:
    """Return the bytes of a reply. Raises Unwanted."""
    data, missing = bytearray(), _MOST
    while missing > 0:
        data += _receive(connection, deadline, min(missing, _MOST))
        if len(data) >= _HEAD:
            missing = _HEAD + int.from_bytes(data[:_HEAD], "little") - len(data)
    return data[_HEAD:]


def _send(connection: socket.socket, request: Request[object], descriptors: Sequence[int]) -> None:
    data = encode_request(request)
    sent = socket.send_fds(connection, [data], descriptors) if descriptors else 0
    if sent < len(data):
        connection.sendall(data[sent:])


def _no_answer(run: Run, error: Exception) -> RunEndedError:
    run.check()
    return RunEndedError(f"the agent of the run in {run.folder} does not answer: {error}")


def error_named(kind: str, text: str) -> Exception:
    """Return the error that an agent described by its class and text."""
    name, _, code = kind.partition(" ")
    if name == "OSError" and code:
        return OSError(int(code), text)  # which makes it a BrokenPipeError, for instance
    return DDICT_ERRORS[name](text, code) if code else _ERRORS.get(name, RuntimeError)(text)


class _Connection:
    """A thread's connection for one request at a time, closed with the thread. A forked child does not use it."""

    def __init__(self, folder: Path) -> None:
        self.key = (os.getpid(), folder)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        close_with(self, self.socket)
        connect_within(folder, "agent", self.socket)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _seconds(1.0))

    def __del__(self) -> None:
        if hasattr(self, "socket"):  # else an exception of a signal handler has interrupted __init__()
            self.socket.close()


def _seconds(count: float) -> bytes:
    """Return a struct timeval."""
    return struct.pack("@ll", int(count), int(count % 1 * 1e6) or 1)


def close_with(owner: object, connection: socket.socket) -> None:
    """Close a socket once nothing refers to its owner any more. If the garbage collector finds both at once, a
    `__del__` of the owner may be called after the socket's own, which warns that the socket was not closed. The owner
    needs a `__del__` as well: at the end of the interpreter finalizers are not called."""
    weakref.finalize(owner, connection.close).atexit = False


def _taken(folder: Path) -> _Connection:
    """Take this thread's connection, or make one."""
    known: _Connection | None = getattr(_local, "connection", None)
    _local.connection = None
    if known is not None and known.key == (os.getpid(), folder) and known.socket.fileno() >= 0:
        return known
    try:
        return _Connection(folder)
    except OSError as error:
        raise _no_answer(this_run(), error) from error


def _receive(connection: socket.socket, deadline: float | None, most: int) -> bytes:
    """Receive at least a byte, and at most so many. Returns the bytes."""
    shortened = False
    while True:
        try:
            received = connection.recv(most)
        except BlockingIOError as error:  # after a second
            if is_of_handler(error):
                raise
            if _core.asked():
                inspection.answer(this_run().folder)
            if deadline is not None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise Unwanted from None
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _seconds(min(left, 1.0)))
                shortened = True
            continue
        if not received:
            raise EOFError("the connection was closed")
        if shortened:  # else later requests over this connection would look around more often
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _seconds(1.0))
        return received
