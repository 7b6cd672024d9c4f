"""How a server of this package gets answers from a run."""

from __future__ import annotations

from typing import Protocol, TypeVar

from dragon.runtime.protocol.request import Request

Answer = TypeVar("Answer")


class Ask(Protocol):
    """Asks the agents of a run."""

    async def __call__(self, request: Request[Answer], /) -> Answer:
        """Return the agents' answer. Raises RunEndedError if the run is ending."""
