"""Where other agents connect to this one, with links and with lanes beside them.

Any other connection is refused, which is logged once.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable

from dragon.agent.wire.direct import LANE, Direct
from dragon.runtime.callers import Callers
from dragon.runtime.log import Once, runtime_log

__all__ = ["Listener"]

log = runtime_log("links")

_HANDSHAKE_WITHIN = 5.0


class Listener:
    """Accepts connections on `listener`: links, served by `protocol`, and lanes of `direct`."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        protocol: Callable[[], asyncio.BaseProtocol],
        direct: Direct,
    ) -> None:
        self._context = context
        self._protocol = protocol
        self._direct = direct
        self._loop = asyncio.get_running_loop()
        self._tell = Once(log)
        self._callers = Callers(listener, self._greet, self._tell)

    def close(self) -> None:
        """Accept no more connections."""
        self._callers.close()

    async def _greet(self, connection: socket.socket, address: str) -> None:
        try:
            async with asyncio.timeout(_HANDSHAKE_WITHIN):
                if connection.recv(1, socket.MSG_PEEK) == LANE:
                    await self._admit_lane(connection)
                    return
            await self._loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._context, ssl_handshake_timeout=_HANDSHAKE_WITHIN
            )
        except ConnectionResetError as error:  # as from a node whose run ends
            connection.close()
            log.debug("a connection from %s was closed before it had shown a certificate: %s", address, error)
        except OSError as error:  # TimeoutError is one
            connection.close()
            why = str(error) or type(error).__name__
            self._tell("a caller from {} was refused: it has no certificate of this run ({})", address, why)

    async def _admit_lane(self, connection: socket.socket) -> None:
        try:
            await self._direct.admit(connection)
        except ConnectionRefusedError as error:
            connection.close()
            log.debug("a connection for large payloads was refused: %s", error)
