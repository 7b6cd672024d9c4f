"""What the processes of this node write, on its way to the front end of a run of several nodes."""

from __future__ import annotations

from collections.abc import Callable

from dragon.runtime.protocol.front_end import Message, Wrote

__all__ = ["Output"]


class Output:
    """Sends output through `send`, ahead of what was shown by no more than about `window` bytes.

    Whoever has more waits with `when_there_is_room`; so a slow terminal holds the writers back, and nothing is kept
    here.
    """

    def __init__(self, send: Callable[[Message], None], window: int) -> None:
        self._send = send
        self._window = window
        self._ahead = 0
        self._waiting: list[Callable[[], None]] = []

    @property
    def is_full(self) -> bool:
        """Whether the front end has to show some before there may be more."""
        return self._ahead >= self._window

    def write(self, number: int, data: bytes) -> None:
        """Send what a process wrote to descriptor 1 or 2."""
        self._ahead += len(data)
        self._send(Wrote(number, data))

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once the front end has caught up."""
        self._waiting.append(callback)

    def written(self, count: int) -> None:
        """The front end has shown so many bytes more."""
        self._ahead -= count
        if not self.is_full:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()
