"""Public names of modules that are otherwise internal."""

from __future__ import annotations

import socket
import threading

from dragon.infrastructure.connection import Client, Listener
from dragon.infrastructure.util import get_port


def test_get_port_returns_a_free_port() -> None:
    with socket.socket() as server:
        server.bind(("", get_port()))


def test_a_listener_and_a_client_exchange_a_message() -> None:
    with Listener(("localhost", 0)) as listener:
        client = threading.Thread(target=lambda: Client(listener.address).send("here"))
        client.start()
        with listener.accept() as connection:
            assert connection.recv() == "here"
        client.join()
