"""The metrics of a run over several nodes, which the front end hands on to Prometheus."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable

from dragon.agent.control import Control
from dragon.infrastructure import parameters

__all__ = ["Metrics"]


class Metrics:
    """Asks one agent, which has asked all the others. Where nobody wants metrics this does nothing."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[bytes]] = {}

    async def open(self, agent: Callable[[], Control | None]) -> None:
        """Serve, if there is a port for that. `agent` gives the connection to one that is there."""
        if not os.environ.get(parameters.TELEMETRY_PORT):
            return
        from dragon.agent.telemetry.endpoint import open_endpoint

        async def page() -> bytes:
            control, number = agent(), next(self._numbers)
            if control is None:
                return b""  # the run is at its end
            future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            self._asked[number] = future
            try:
                control.send("metrics", number=number)
                return await future
            finally:
                del self._asked[number]

        self._server = await open_endpoint(page)

    def answered(self, number: int, page: bytes) -> None:
        """An agent did."""
        future = self._asked.get(number)
        if future is not None and not future.done():  # somebody still waits for it
            future.set_result(page)

    def close(self) -> None:
        """Serve no more."""
        if self._server is not None:
            self._server.close()
