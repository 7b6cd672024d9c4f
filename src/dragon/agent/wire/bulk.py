"""How payloads go from one agent to another: two kinds of lanes with one small interface.

Every link contains a lane, over TCP with TLS. If both agents have the same fabric, the link has a second lane, for
large payloads. Frames always go over the link, so a payload has its place among them whichever lane it uses.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

__all__ = ["Fabric", "Greeting", "InLink", "Lane"]

_PIECE = 4 * 2**20  # bytes written at a time; TLS cannot take 2 GiB at once, and copies what it has not sent


class Greeting(NamedTuple):
    """What one agent sends another, over the encrypted link, about its end of a new lane."""

    kind: str
    """The kind of its fabric."""
    place: bytes
    """Its address on the fabric, encoded."""
    tag: int
    """The tag of the first payload that it expects, or of its end of the lane."""


class Lane(Protocol):
    """A way for the payloads of one link, in both directions."""

    def open(self) -> bool:
        """Return whether payloads can be sent this way. The first call starts connecting if that is needed."""
        ...

    def send(self, payload: memoryview) -> None:
        """Send the next payload. It is kept, and must not change, until it is sent."""
        ...

    def receive(self, memory: Any, done: Callable[[], None]) -> None:
        """Fill `memory` with the next payload that was not requested yet, then call `done`."""
        ...

    def close(self) -> None:
        """Close the lane, because the link is closed: nothing more is received."""
        ...


class Fabric(Protocol):
    """What an agent has for payloads besides its links."""

    def greet(self) -> Greeting:
        """Return what to send to the other side of a new link."""
        ...

    def lane(self, told: Greeting, heard: Greeting, peer: str, lost: Callable[[str], None]) -> Lane:
        """Return the lane of a link on which both sides have greeted.

        Args:
            told: the greeting of this side
            heard: the greeting of the other side
            lost: called with the reason if the lane fails
        """
        ...

    def close(self) -> None:
        """Stop using the fabric. What is not finished is given up."""
        ...


class InLink:
    """The lane in the link: a payload follows its frame."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._waiting: deque[memoryview] = deque()
        self._is_full = False
        self._done: Callable[[], None] | None = None
        self.rest = memoryview(b"")
        """The memory for the rest of the payload that is being received."""

    def open(self) -> bool:
        """Return True: the lane is there as soon as the link is."""
        return True

    def send(self, payload: memoryview) -> None:
        """Write a payload after its frame."""
        self.write(payload)

    def write(self, data: Any) -> None:
        """Write data after what was written before; large data in pieces, as the connection takes it."""
        if not self._waiting and len(data) <= _PIECE:
            self._transport.write(data)
            return
        self._waiting.append(memoryview(data))
        self.resume(self._is_full)

    def resume(self, is_full: bool = False) -> None:
        """Continue writing what waits, unless the connection's buffer is full."""
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
        """Note that `count` more bytes are in place."""
        self.rest = self.rest[count:]
        if not self.rest and self._done is not None:
            done, self._done = self._done, None
            done()

    def close(self) -> None:
        """Drop what was not written or read, because the link is closed."""
        self.rest, self._done = memoryview(b""), None
        self._waiting.clear()
