"""Callers of a listener who have not proved yet that they belong to the run.

A caller costs a descriptor until it has proved that, so there is room for so many at a time; more of them wait in the
kernel's queue. Who belongs to the run speaks at once and is done within milliseconds. So where there is no room left,
those make some that have been silent, or have not come to an end, for longer than that.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from dragon.runtime.log import Once

__all__ = ["Callers"]

_MOST = 256
_GREETING_TIMEOUT_S = 5.0  # seconds until a caller has to have said something
_SILENT_TIMEOUT_S = 0.25  # seconds in which one may be silent where there is no room
_PROOF_TIMEOUT_S = 2.0  # seconds in which one may prove what it is where there is no room
_ACCEPT_BATCH = 64  # that are accepted before others have their turn
_ACCEPT_RETRY_S = 0.1  # seconds after which it is tried again to accept a caller


class _Caller:
    def __init__(self, connection: socket.socket, address: str, now: float) -> None:
        self.connection = connection
        self.address = address
        self.since = now
        self.greeting: asyncio.Future[None] | None = None  # once it has spoken


class Callers:
    """Accepts callers, and calls `greet(connection, address)` for each that speaks.

    `greet` owns the connection and ends when the caller has proved what it is, or was refused; it is cancelled where
    room is needed. `tell` logs who was refused, and why.
    """

    def __init__(
        self,
        listener: socket.socket,
        greet: Callable[[socket.socket, str], Awaitable[None]],
        tell: Once,
    ) -> None:
        self._listener = listener
        self._greet = greet
        self._tell = tell
        self._loop = asyncio.get_running_loop()
        self._callers: dict[_Caller, None] = {}  # the oldest first
        self._open = True
        listener.setblocking(False)
        self._listen()

    def close(self) -> None:
        """Accept nobody any more; may be called again."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._listener)
            self._listener.close()
            for caller in list(self._callers):
                self._drop(caller)

    def _listen(self) -> None:
        if self._open:
            self._loop.add_reader(self._listener, self._on_callers)

    def _listen_later(self) -> None:
        self._loop.remove_reader(self._listener)
        self._loop.call_later(_ACCEPT_RETRY_S, self._listen)

    def _on_callers(self) -> None:
        for _ in range(_ACCEPT_BATCH):
            if len(self._callers) >= _MOST and not self._make_room():
                self._listen_later()
                return
            try:
                connection, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:  # the caller is gone again, or this process is out of descriptors
                self._tell("a connection could not be accepted: {}", error.strerror)
                if not self._make_room():
                    self._listen_later()
                return
            connection.setblocking(False)
            caller = _Caller(connection, address[0], self._loop.time())
            self._callers[caller] = None
            self._loop.add_reader(connection, self._on_spoken, caller)
            self._loop.call_later(_GREETING_TIMEOUT_S, self._on_silence, caller)

    def _make_room(self) -> bool:
        """Whether somebody could be dropped."""
        now = self._loop.time()
        over = [
            c for c in self._callers if now - c.since > (_SILENT_TIMEOUT_S if c.greeting is None else _PROOF_TIMEOUT_S)
        ]
        for caller in over:
            self._tell("a caller from {} was refused: it said nothing of use, and others wait", caller.address)
            self._drop(caller)
        return bool(over)

    def _on_spoken(self, caller: _Caller) -> None:
        self._loop.remove_reader(caller.connection)
        caller.greeting = asyncio.ensure_future(self._greet(caller.connection, caller.address))
        caller.greeting.add_done_callback(lambda _: self._on_greeted(caller))

    def _on_silence(self, caller: _Caller) -> None:
        if caller in self._callers and caller.greeting is None:
            self._tell("a caller from {} was refused: it said nothing for {:g} s", caller.address, _GREETING_TIMEOUT_S)
            self._drop(caller)

    def _on_greeted(self, caller: _Caller) -> None:
        self._callers.pop(caller, None)
        assert caller.greeting is not None
        if caller.greeting.cancelled():
            caller.connection.close()  # also where greet() had not begun
        else:
            caller.greeting.result()  # the loop tells of an error that greet() does not expect

    def _drop(self, caller: _Caller) -> None:
        self._callers.pop(caller, None)
        if caller.greeting is None:
            self._loop.remove_reader(caller.connection)
            caller.connection.close()
        else:
            caller.greeting.cancel()
