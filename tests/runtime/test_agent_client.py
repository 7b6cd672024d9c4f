"""Connections to the agent."""

from __future__ import annotations

import gc
import socket

from dragon.runtime.agent_client import close_with


class Owner:
    """An object that refers to its socket and to itself."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection, self.myself = connection, self


def test_a_connection_in_a_reference_cycle_is_closed_without_a_warning() -> None:
    here, there = socket.socketpair()
    close_with(Owner(here), here)
    del here
    gc.collect()
    with there:
        assert there.recv(1) == b""
