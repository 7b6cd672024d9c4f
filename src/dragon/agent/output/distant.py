"""A channel on another node, for the standard streams of a process of this node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dragon.infrastructure.errors import NodeLostError
from dragon.infrastructure.messages import Name
from dragon.runtime.log import runtime_log
from dragon.runtime.remote import from_parts, node_of, to_parts

if TYPE_CHECKING:  # the agent of a run of one node has no use for them, and starts sooner without
    from dragon.agent.wire.links import Links

log = runtime_log("output")

_RETRY_S = 1.0  # seconds until a node is asked again that could not be reached


class DistantChannel:
    """One end of a pipe whose channel is on another node. Objects that are put arrive in order."""

    def __init__(self, links: Links, name: Name) -> None:
        self._links = links
        self._name = name
        self._node = node_of(name)
        self._out_of_reach = False
        self._ask("attach")

    def put(self, obj: Any) -> asyncio.Future[tuple[Any, Any]]:
        """Put an object, which waits for memory on the channel's node; the future fails if the reader or its node is
        lost, or cannot be reached. Raises MemoryError if this node has none."""
        kind, data = to_parts(obj)
        future = self._ask("Channel.put_with_memory", kind, payload=data, waits=True)
        future.add_done_callback(self._note_loss)
        return future

    def get(self, received: Callable[[Any], None], ended: Callable[[], None]) -> None:
        """Call `received` with the next object, or `ended` if there will be none."""

        def done(future: asyncio.Future[tuple[Any, Any]]) -> None:
            if self._note_loss(future):
                asyncio.get_running_loop().call_later(_RETRY_S, self.get, received, ended)
                return
            if future.cancelled() or future.exception() is not None:
                ended()
                return
            received(from_parts(*future.result()))

        self._ask("Channel.get", waits=True).add_done_callback(done)

    def count(self, counted: Callable[[int], None]) -> None:
        """Call `counted` with the number of objects in the channel; 0 if it no longer exists."""

        def done(future: asyncio.Future[tuple[Any, Any]]) -> None:
            failed = future.cancelled() or future.exception() is not None
            counted(0 if failed else future.result()[1])

        self._ask("Channel.size").add_done_callback(done)

    def close(self) -> None:
        """Release this end, whether or not the node can be reached now."""
        self._ask("detach")

    def _note_loss(self, future: asyncio.Future[tuple[Any, Any]]) -> bool:
        """Return whether the channel's node cannot be reached, but is not lost, and say what that means."""
        error = None if future.cancelled() else future.exception()
        known, self._out_of_reach = self._out_of_reach, isinstance(error, NodeLostError)
        if self._node in self._links.lost:
            return False
        if self._out_of_reach and not known:
            log.warning("some input or output of a process may be lost: %s", error)
        return self._out_of_reach

    def _ask(
        self, operation: str, *given: int, payload: Any = None, waits: bool = False
    ) -> asyncio.Future[tuple[Any, Any]]:
        future = self._links.operate(operation, self._name, *given, payload=payload, waits=waits)
        future.add_done_callback(_looked_at)
        return future


def _looked_at(future: asyncio.Future[tuple[Any, Any]]) -> None:
    # Callers that wait for it see its failure; otherwise the channel no longer exists, nor its reader.
    if not future.cancelled():
        future.exception()
