"""Sends the output of this node's processes to the front end of a run of several nodes."""

from __future__ import annotations

from collections.abc import Callable

from dragon.runtime.protocol.front_end import Message, Wrote


class Output:
    """Sends output with `send`, with at most about `window` bytes that the front end has not shown yet.

    Writers with more wait with `when_there_is_room`; so a slow terminal blocks the writers, and nothing is buffered
    here.
    """

    def __init__(self, send: Callable[[Message], None], window: int) -> None:
        self._send = send
        self._window = window
        self._ahead = 0
        self._waiting: list[Callable[[], None]] = []

    @property
    def is_full(self) -> bool:
        """Whether the front end must show some output before more may be sent."""
        return self._ahead >= self._window

    def write(self, number: int, data: bytes) -> None:
        """Send what a process wrote to descriptor 1 or 2."""
        self._ahead += len(data)
        self._send(Wrote(number, data))

    def when_there_is_room(self, callback: Callable[[], None]) -> None:
        """Call back once the front end has caught up."""
        self._waiting.append(callback)

    def written(self, count: int) -> None:
        """Note that the front end has shown `count` more bytes."""
        self._ahead -= count
        if not self.is_full:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback()
