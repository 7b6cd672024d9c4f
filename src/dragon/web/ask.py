"""How a server here gets answers from a run."""

from __future__ import annotations

from typing import Protocol, TypeVar

from dragon.runtime.protocol.request import Request

__all__ = ["Ask"]

Answer = TypeVar("Answer")


class Ask(Protocol):
    """Asks the agents of a run."""

    async def __call__(self, request: Request[Answer], /) -> Answer:
        """What they answer. Raises RunEndedError where the run is at its end."""
