"""A fabric for large payloads besides the connections between agents, such as UCX's.

Frames always go over the connection, so a payload has its place among them. Those behind a payload that has not arrived
wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

__all__ = ["Fabric", "Greeting", "Lane"]


class Greeting(NamedTuple):
    """What one agent sends another, encrypted, about its end of a new lane."""

    kind: str
    """The kind of its fabric."""
    place: bytes
    """Its address on the fabric, encoded."""
    tag: int
    """The tag of the first payload that it expects."""


class Lane(Protocol):
    """A way for the payloads of one connection, in both directions."""

    def open(self) -> bool:
        """Return whether payloads can be sent this way."""
        ...

    def send(self, payload: memoryview) -> None:
        """Send the next payload. It is kept, and must not change, until it is sent."""
        ...

    def receive(self, memory: Any, done: Callable[[], None]) -> None:
        """Fill `memory` with the next payload that was not requested yet, then call `done`."""
        ...

    def close(self) -> None:
        """Close the lane, because the connection is closed: nothing more is received."""
        ...


class Fabric(Protocol):
    """What an agent has for payloads besides its connections."""

    def greet(self) -> Greeting:
        """Return what to send to the other side of a new connection."""
        ...

    def lane(self, own: Greeting, their: Greeting, peer: str, lost: Callable[[str], None]) -> Lane:
        """Return the lane of a connection on which both sides have greeted; `lost` is called if it fails."""
        ...

    def close(self) -> None:
        """Stop using the fabric. What is not finished is given up."""
        ...
