"""What the front end asks a run over several nodes, for those who look at it from here."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from dragon.control.connection import Control
from dragon.infrastructure.errors import DragonError, RunEndedError

__all__ = ["Questions"]

_PATIENCE = 10.0


class Questions:
    """Questions to one agent, which asks all the others. `agent` gives the connection to one that is there."""

    def __init__(self, agent: Callable[[], Control | None]) -> None:
        self._agent = agent
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}

    async def ask(self, operation: str, arguments: dict[str, Any]) -> Any:
        """What the agents answer. Raises RunEndedError at the end of the run, DragonError where it has no answer."""
        control, number = self._agent(), next(self._numbers)
        if control is None:
            raise RunEndedError("the run is at its end")
        self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            control.send("ask", number=number, operation=operation, arguments=arguments)
            async with asyncio.timeout(_PATIENCE):
                return await self._asked[number]
        except TimeoutError:
            raise DragonError(f"the run has not answered within {_PATIENCE:g} s") from None
        finally:
            del self._asked[number]

    def answered(self, number: int, value: Any = None, error: str = "") -> None:
        """An agent did."""
        future = self._asked.get(number)
        if future is None or future.done():
            return  # nobody waits for it any more
        if error:
            future.set_exception(DragonError(error))
        else:
            future.set_result(value)
