"""Waits of this node's own processes for its objects, without a thread for each: for processes with an event loop."""

from __future__ import annotations

import asyncio
from typing import Any

from dragon.agent.objects.bell import Bell
from dragon.agent.objects.guests import Guests
from dragon.agent.objects.peers import Peers
from dragon.runtime.protocol.objects import WaitHere
from dragon.runtime.protocol.request import Handler

__all__ = ["LocalWaits"]


class LocalWaits:
    """Parks waits with those of the guests of other nodes. `peers` are the other nodes; None if the run has
    only one."""

    def __init__(self, peers: Peers | None) -> None:
        self._guests = peers.guests if peers is not None else None
        self._bell: Bell | None = None

    def handlers(self) -> list[Handler]:
        """Return the handlers of the requests that this object serves."""
        return [WaitHere.served_by(self._wait)]

    def _wait(self, request: WaitHere) -> asyncio.Future[tuple[bool, Any]]:
        answer: asyncio.Future[tuple[bool, Any]] = asyncio.get_running_loop().create_future()

        def respond(value: Any, data: Any = b"", error: Exception | None = None) -> None:
            if answer.done():
                return
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(value)

        stop = self._all_guests().wait_here(request.slot, request.operation, respond)
        answer.add_done_callback(lambda done: stop() if done.cancelled() else None)
        return answer

    def _all_guests(self) -> Guests:
        if self._guests is None:
            guests = self._guests = Guests(asyncio.get_running_loop())
            self._bell = Bell(guests.try_those_at, guests.try_all)
        return self._guests
