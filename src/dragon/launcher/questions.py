"""Requests of the front end to the agents of a run over several nodes, for views that it serves."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import TypeVar

import msgspec

from dragon.control.connection import Control
from dragon.infrastructure.errors import DragonError, RunEndedError
from dragon.infrastructure.messages import encode
from dragon.runtime.protocol.front_end import Answered, Question
from dragon.runtime.protocol.request import Request, decode_answer

_Answer = TypeVar("_Answer")

_ANSWER_TIMEOUT_S = 10.0


class Questions:
    """Requests to one agent, which asks all the others. `agent` returns the connection to a live one, or None."""

    def __init__(self, agent: Callable[[], Control | None]) -> None:
        self._agent = agent
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[msgspec.Raw]] = {}

    async def ask(self, request: Request[_Answer]) -> _Answer:
        """Return the agents' reply. Raises RunEndedError at the end of the run, DragonError for an error, or without a
        reply in 10 s."""
        control, number = self._agent(), next(self._numbers)
        if control is None:
            raise RunEndedError("the run is at its end")
        self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            control.send(Question(number, msgspec.Raw(encode(request))))
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                return decode_answer(request, await self._asked[number])
        except TimeoutError:
            raise DragonError(f"the run has not answered within {_ANSWER_TIMEOUT_S:g} s") from None
        finally:
            del self._asked[number]

    def answered(self, answer: Answered) -> None:
        """Handle an agent's reply."""
        future = self._asked.get(answer.number)
        if future is None or future.done():
            return  # the request has timed out
        if answer.error:
            future.set_exception(DragonError(answer.error))
        else:
            future.set_result(answer.value)
