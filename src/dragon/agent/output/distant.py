"""A channel on another node, for the standard streams of a process of this node."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import msgspec

from dragon.agent.wire.responses import Answer
from dragon.infrastructure.messages import Name
from dragon.runtime.protocol.agents import Act
from dragon.runtime.protocol.objects import Operation
from dragon.runtime.remote import from_parts, node_of, to_parts

__all__ = ["DistantChannel"]

# (node, request, payload) -> the answer: Links.call.
Call = Callable[[int, Act, Any], "asyncio.Future[Answer]"]


class DistantChannel:
    """One end of a pipe whose channel is on another node. Objects that are put arrive in order."""

    def __init__(self, call: Call, name: Name) -> None:
        self._call = call
        self._name = name
        self._ask("_attach")

    def put(self, obj: Any) -> asyncio.Future[Answer]:
        """Put an object, which waits for memory on the channel's node; the future fails if the reader or its node is
        lost. Raises MemoryError if this node has none."""
        kind, data = to_parts(obj)
        return self._ask("put_with_memory", kind, timeout=None, payload=data)

    def get(self, received: Callable[[Any], None], ended: Callable[[], None]) -> None:
        """Call `received` with the next object, or `ended` if there will be none."""

        def done(future: asyncio.Future[Answer]) -> None:
            if future.cancelled() or future.exception() is not None:
                ended()
                return
            value, data = future.result()
            received(from_parts(_result(value), data))

        self._ask("get", timeout=None).add_done_callback(done)

    def count(self, counted: Callable[[int], None]) -> None:
        """Call `counted` with the number of objects in the channel; 0 if it no longer exists."""

        def done(future: asyncio.Future[Answer]) -> None:
            failed = future.cancelled() or future.exception() is not None
            counted(0 if failed else _result(future.result()[0]))

        self._ask("_size").add_done_callback(done)

    def close(self) -> None:
        """Release this end."""
        self._ask("_release")

    def _ask(self, method: str, *given: Any, timeout: float | None = 0, payload: Any = b"") -> asyncio.Future[Answer]:
        operation = Operation(self._name, "Channel", method, given, timeout)
        future = self._call(node_of(self._name), Act(os.getpid(), operation), payload)
        future.add_done_callback(_looked_at)
        return future


def _result(value: msgspec.Raw) -> int:
    """Return the result of a method, or the kind of a message."""
    return msgspec.msgpack.decode(value, type=tuple[bool, int])[1]


def _looked_at(future: asyncio.Future[Answer]) -> None:
    # Callers that wait for it see its failure; otherwise the channel no longer exists, nor its reader.
    if not future.cancelled():
        future.exception()
