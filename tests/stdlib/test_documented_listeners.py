"""What the standard library's documentation promises of listeners, clients and authentication keys.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import multiprocessing.connection
from collections.abc import Iterator
from typing import Any

import pytest

import dragon  # noqa: F401

LONG = 30
CONTEXT: Any = mp.get_context("dragon")


def start(target: Any, *args: Any, **options: Any) -> Any:
    process = CONTEXT.Process(target=target, args=args, **options)
    process.start()
    return process


def ended(process: Any) -> Any:
    process.join(LONG)
    return process.exitcode


@contextlib.contextmanager
def listening() -> Iterator[Any]:
    with mp.connection.Listener(("localhost", 0), authkey=b"secret") as listener:
        yield listener


def test_listeners_and_clients_authenticate() -> None:
    """If authkey is given and not None, it should be a byte string and will be used as the secret key for an HMAC-based
    authentication challenge. AuthenticationError is raised if authkey is given and authentication fails."""
    with listening() as listener:
        process = start(call, listener.address, b"secret")
        with listener.accept() as connection:
            assert connection.recv() == "called"
        assert ended(process) == 0
        process = start(call, listener.address, b"wrong")
        with pytest.raises(mp.AuthenticationError):
            listener.accept()
        ended(process)


def call(address: Any, key: bytes) -> None:
    with contextlib.suppress(mp.AuthenticationError), mp.connection.Client(address, authkey=key) as connection:
        connection.send("called")
