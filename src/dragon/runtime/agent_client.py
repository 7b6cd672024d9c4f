"""Requests to this node's agent, one connection per thread."""

from __future__ import annotations

import os
import socket
import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar, cast

from dragon import _core
from dragon.infrastructure.ddict_errors import DDICT_ERRORS
from dragon.infrastructure.errors import DestroyedError, NodeLostError, NotSupportedError, RunEndedError
from dragon.infrastructure.private import connect_within
from dragon.runtime import inspection
from dragon.runtime.protocol.request import Request, decode_reply, encode_request
from dragon.runtime.run import Run, this_run

__all__ = ["Unwanted", "ask", "close_with", "error_named", "forbid_asking", "tell"]

_ONE_SECOND = struct.pack("@ll", 1, 0)

_Answer = TypeVar("_Answer")

_local = threading.local()
_ERRORS: dict[str, type[Exception]] = {
    error.__name__: error
    for error in (
        AssertionError,
        BrokenPipeError,
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


def ask(
    request: Request[_Answer], descriptors: Sequence[int] = (), wanted: Callable[[], bool] | None = None
) -> _Answer:
    """Send a request to this node's agent and return the reply.

    Raises what the agent raised, RunEndedError if no agent answers, Unwanted once `wanted()`, which is called once a
    second, returns False, and ValueError in the agent itself.
    """
    run = this_run()
    if _in_agent:
        raise ValueError(f"node {run.node} was given an object of another node where one of its own is needed")
    try:
        connection = _connection(run.folder)
        _send(connection, request, descriptors)
        size = int.from_bytes(_receive(connection, 4, wanted), "little")
        reply = decode_reply(request, _receive(connection, size))
    except (OSError, EOFError) as error:
        _local.connection = None
        raise _no_answer(run, error) from error
    except BaseException:
        _local.connection = None  # closing the connection cancels the request
        raise
    if reply.error is not None:
        raise error_named(*reply.error)
    return cast(_Answer, reply.value)  # a reply without an error has a value


def tell(request: Request[None], descriptors: Sequence[int]) -> None:
    """Send a request without waiting for the reply, which an agent that is still starting sends late. Raises
    RunEndedError."""
    run = this_run()
    try:
        connection = _Connection(run.folder)
        _send(connection.socket, request, descriptors)
    except OSError as error:
        raise _no_answer(run, error) from error


def _send(connection: socket.socket, request: Request[object], descriptors: Sequence[int]) -> None:
    data = encode_request(request)
    sent = socket.send_fds(connection, [data], descriptors) if descriptors else 0
    connection.sendall(data[sent:])


def _no_answer(run: Run, error: Exception) -> RunEndedError:
    run.check()
    return RunEndedError(f"the agent of the run in {run.folder} does not answer: {error}")


def error_named(kind: str, text: str) -> Exception:
    """Return the error that an agent described by its class and text."""
    name, _, code = kind.partition(" ")
    return DDICT_ERRORS[name](text, code) if code else _ERRORS.get(name, RuntimeError)(text)


class _Connection:
    """A thread's connection, which is closed when the thread ends and is not used by a forked child."""

    def __init__(self, folder: Path) -> None:
        self.key = (os.getpid(), folder)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        close_with(self, self.socket)
        connect_within(folder, "agent", self.socket)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _ONE_SECOND)

    def __del__(self) -> None:
        self.socket.close()


def close_with(owner: object, connection: socket.socket) -> None:
    """Close a socket once nothing refers to its owner any more.

    If the garbage collector finds both at once, a `__del__` of the owner may be called after the socket's own, which
    warns that the socket was not closed. The owner needs a `__del__` as well: at the end of the interpreter finalizers
    are not called.
    """
    weakref.finalize(owner, connection.close).atexit = False


def _connection(folder: Path) -> socket.socket:
    known: _Connection | None = getattr(_local, "connection", None)
    if known is None or known.key != (os.getpid(), folder):
        known = _local.connection = _Connection(folder)
    return known.socket


def _receive(connection: socket.socket, size: int, wanted: Callable[[], bool] | None = None) -> bytes:
    data = bytearray()
    while len(data) < size:
        try:
            part = connection.recv(size - len(data))
        except BlockingIOError:  # after a second
            if _core.asked():
                inspection.answer(this_run().folder)
            if wanted is not None and not wanted():
                raise Unwanted from None
            continue
        if not part:
            raise EOFError("the connection was closed")
        data += part
    return bytes(data)
