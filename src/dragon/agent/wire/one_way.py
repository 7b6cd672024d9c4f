"""Payloads that go in one direction over a connection, as fast as it takes or delivers them.

The event loop's coroutines for sockets register and unregister the socket with the kernel for every piece. Here it
stays registered as long as there is something to wait for.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Iterator

__all__ = ["OneWay"]

_AT_A_TIME = 8 * 2**20  # bytes, before other connections have their turn

# The memory to send or fill for one payload, in pieces.
Pieces = Callable[[memoryview], Iterator[memoryview]]


class OneWay:
    """One direction of a non-blocking connection. `lost` is called with the error if it fails."""

    def __init__(
        self, connection: socket.socket, pieces: Pieces, lost: Callable[[OSError], None], *, is_outward: bool
    ) -> None:
        self._connection = connection
        self._pieces = pieces
        self._lost = lost
        loop = asyncio.get_running_loop()
        self._transfer = connection.send if is_outward else connection.recv_into
        self._watch, self._unwatch = (
            (loop.add_writer, loop.remove_writer) if is_outward else (loop.add_reader, loop.remove_reader)
        )
        self._is_outward = is_outward
        self._is_watched = False
        self._waiting: deque[tuple[memoryview, Callable[[], None]]] = deque()
        # Of the current payload: its pieces, the rest of the current piece, and what to call at the end.
        self._rest = memoryview(b"")
        self._following: Iterator[memoryview] = iter(())
        self._done: Callable[[], None] | None = None

    def add(self, payload: memoryview, done: Callable[[], None]) -> None:
        """Send or fill one more payload, after those before it.

        It is kept until it is finished. Then `done` is called, which must not call add().
        """
        self._waiting.append((payload, done))
        if self._rest:
            return
        self._next()
        if self._is_outward:
            self._go_on()
        else:
            self._set_watched(True)

    def _go_on(self) -> None:
        """Send or receive as much as is possible at once."""
        left = _AT_A_TIME
        try:
            while left > 0:
                count = self._transfer(self._rest)
                if count == 0:
                    raise ConnectionResetError("the connection was closed")
                left -= count
                self._rest = self._rest[count:]
                if self._rest or not self._next():
                    break
        except BlockingIOError:
            pass
        except OSError as error:
            self.close()
            self._lost(error)
            return
        self._set_watched(bool(self._rest))

    def _next(self) -> bool:
        """Go to the next piece. Return whether there is one."""
        while True:
            piece = next(self._following, None)
            if piece is not None:
                self._rest = piece
                return True
            # Nothing refers to the piece any more, so its memory can be used again.
            self._rest, self._following = memoryview(b""), iter(())
            done, self._done = self._done, None
            if done is not None:
                done()
            if not self._waiting:
                return False
            payload, self._done = self._waiting.popleft()
            self._following = self._pieces(payload)

    def _set_watched(self, on: bool) -> None:
        if on and not self._is_watched:
            self._watch(self._connection, self._go_on)
        elif self._is_watched and not on:
            self._unwatch(self._connection)
        self._is_watched = on

    def close(self) -> None:
        """Close the connection. What is not finished is given up."""
        self._set_watched(False)
        self._waiting.clear()
        self._rest, self._following, self._done = memoryview(b""), iter(()), None
        self._connection.close()
