"""Limits the connections of a listener that have not been authenticated yet.

Each connection takes a file descriptor, so their number is limited; more of them wait in the kernel's queue. A member
of the run sends data at once and is authenticated within milliseconds. If the limit is reached, connections that have
been silent or unauthenticated for longer are closed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from dragon.runtime.log import Once

_MOST = 256  # unauthenticated connections at most
_GREETING_TIMEOUT_S = 5.0  # seconds within which a caller must send something
_SILENT_TIMEOUT_S = 0.25  # seconds within which a caller must send something when the limit is reached
_PROOF_TIMEOUT_S = 2.0  # seconds within which a caller must be authenticated when the limit is reached
_ACCEPT_BATCH = 64  # connections that are accepted before the loop serves others
_ACCEPT_RETRY_S = 0.1  # seconds after which accepting is retried


class _Caller:
    def __init__(self, connection: socket.socket, address: str, now: float) -> None:
        self.connection = connection
        self.address = address
        self.since = now
        self.greeting: asyncio.Future[None] | None = None  # set once the caller has sent something


class Callers:
    """Accepts connections, and calls `greet(connection, address)` for each that sends something. `greet` owns the
    connection and returns when the caller is authenticated or refused; it is cancelled if the limit is reached. `tell`
    logs who was refused, and why."""

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
        """Stop accepting connections; may be called again."""
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
            except OSError as error:  # the caller closed the connection, or this process has no free descriptor
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
        """Close connections that take too long. Returns whether any was closed."""
        now = self._loop.time()
        over = [
            c for c in self._callers if now - c.since > (_SILENT_TIMEOUT_S if c.greeting is None else _PROOF_TIMEOUT_S)
        ]
        for caller in over:
            self._tell("a caller from {} was refused: it did not authenticate, and others wait", caller.address)
            self._drop(caller)
        return bool(over)

    def _on_spoken(self, caller: _Caller) -> None:
        self._loop.remove_reader(caller.connection)
        caller.greeting = asyncio.ensure_future(self._greet(caller.connection, caller.address))
        caller.greeting.add_done_callback(lambda _: self._on_greeted(caller))

    def _on_silence(self, caller: _Caller) -> None:
        if caller in self._callers and caller.greeting is None:
            self._tell("a caller from {} was refused: it sent nothing for {:g} s", caller.address, _GREETING_TIMEOUT_S)
            self._drop(caller)

    def _on_greeted(self, caller: _Caller) -> None:
        self._callers.pop(caller, None)
        assert caller.greeting is not None
        if caller.greeting.cancelled():
            caller.connection.close()  # also where greet() had not begun
        else:
            caller.greeting.result()  # the loop reports an unexpected error of greet()

    def _drop(self, caller: _Caller) -> None:
        self._callers.pop(caller, None)
        if caller.greeting is None:
            self._loop.remove_reader(caller.connection)
            caller.connection.close()
        else:
            caller.greeting.cancel()
