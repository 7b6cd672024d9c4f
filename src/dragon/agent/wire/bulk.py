"""How payloads go from one agent to another: two ways behind one small protocol.

Every link has a lane in itself, over TCP with TLS. Where both agents have the same fabric it has a second one beside
it, for large payloads. Frames stay on the link, so a payload has a place among them whichever way it comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

__all__ = ["Fabric", "Greeting", "InLink", "Lane"]

_PIECE = 4 * 2**20  # bytes that are written at a time; TLS takes none of 2 GiB, and keeps a copy of what waits


class Greeting(NamedTuple):
    """What one agent tells another, in private, of its end of a new link."""

    kind: str
    """Of its fabric."""
    place: bytes
    """Where and how it can be reached over that."""
    tag: int
    """Of the first payload that it expects, or of its end."""


class Lane(Protocol):
    """One way for the payloads of one link, in both directions."""

    def open(self) -> bool:
        """Whether payloads can be sent this way; made sure of when it is first asked."""
        ...

    def send(self, payload: memoryview) -> None:
        """Send the next payload. It is kept, and must not change, until it is under way."""
        ...

    def receive(self, memory: Any, done: Callable[[], None]) -> None:
        """Fill `memory` with the next payload that has not been asked for, then call `done`."""
        ...

    def close(self) -> None:
        """The link is gone: nothing more is received."""
        ...


class Fabric(Protocol):
    """What an agent has beside its links."""

    def greet(self) -> Greeting:
        """What to tell the other side of a new link."""
        ...

    def lane(self, told: Greeting, heard: Greeting, peer: str, lost: Callable[[str], None]) -> Lane:
        """The lane beside a link on which both sides have greeted. `lost` is told why it failed, if it does."""
        ...

    def close(self) -> None:
        """Use no processor any more. What is not finished never will be."""
        ...


class InLink:
    """The lane in the link: a payload follows its frame."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._waiting: deque[memoryview] = deque()
        self._is_full = False
        self._done: Callable[[], None] | None = None
        self.rest = memoryview(b"")
        """Where what is still to come of the payload under way is to be put."""

    def open(self) -> bool:
        """Return True: the lane is there as soon as the link is."""
        return True

    def send(self, payload: memoryview) -> None:
        """Write a payload after its frame."""
        self.write(payload)

    def write(self, data: Any) -> None:
        """Write something after what was written before; large data piece by piece, as the connection takes it."""
        if not self._waiting and len(data) <= _PIECE:
            self._transport.write(data)
            return
        self._waiting.append(memoryview(data))
        self.resume(self._is_full)

    def resume(self, is_full: bool = False) -> None:
        """Go on with what waits, unless the connection has as much as it should."""
        self._is_full = is_full
        while self._waiting and not self._is_full:
            data = self._waiting.popleft()
            if len(data) > _PIECE:
                self._waiting.appendleft(data[_PIECE:])
            self._transport.write(data[:_PIECE])

    def receive(self, memory: Any, done: Callable[[], None]) -> None:
        """Fill `memory` with the payload of the frame that was just read, then call `done`."""
        self.rest = memoryview(memory)
        self._done = done

    def filled(self, count: int) -> None:
        """So many more bytes are in place."""
        self.rest = self.rest[count:]
        if not self.rest and self._done is not None:
            done, self._done = self._done, None
            done()

    def close(self) -> None:
        """Drop what was not written or read: the link is gone."""
        self.rest, self._done = memoryview(b""), None
        self._waiting.clear()
