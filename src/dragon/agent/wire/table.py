"""Selects the handler for each kind of request to an agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from dragon.runtime.protocol.request import Caller, Handler, Request, tag_of

__all__ = ["Table"]

_Answer = TypeVar("_Answer")


class Table:
    """The handlers, by the kind of request that each answers."""

    def __init__(self, handlers: Iterable[Handler] = ()) -> None:
        self._handlers: dict[type[Request[object]], Callable[[Any, Caller], object]] = {}
        self.serve(handlers)

    def serve(self, handlers: Iterable[Handler]) -> None:
        """Let these handlers answer the requests of their kinds."""
        self._handlers.update(handlers)

    def do(self, request: Request[_Answer], caller: Caller) -> _Answer | asyncio.Future[_Answer]:
        """Return the answer, or a future of it. Raises what the handler raises, and ValueError if there is no
        handler."""
        do = self._handlers.get(type(request))
        if do is None:
            raise ValueError(f"the agent knows no operation {tag_of(type(request))!r}")
        return cast(_Answer, do(request, caller))
