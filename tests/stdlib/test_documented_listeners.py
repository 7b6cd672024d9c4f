"""Guarantees of the standard library's documentation for listeners, clients and authentication keys.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import multiprocessing.connection
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from documented import CONTEXT, ended, start


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


# ---- challenges


def test_challenges_are_delivered_and_answered() -> None:
    """Send a randomly generated message to the other end of the connection and wait for a reply. If the reply matches
    the digest of the message using authkey as the key then a welcome message is sent to the other end."""
    here, there = CONTEXT.Pipe()
    process = start(mp.connection.answer_challenge, there, b"key")
    mp.connection.deliver_challenge(here, b"key")
    assert ended(process) == 0


# ---- listeners and clients


def say(address: Any, *options: Any, key: bytes | None = None) -> None:
    with mp.connection.Client(address, *options, authkey=key) as connection:
        connection.send([2.25, None, "junk", float])
        connection.send_bytes(b"hello")
        connection.send_bytes(array("i", [42, 1729]))


def heard(listener: Any) -> Any:
    with listener.accept() as connection:
        numbers = array("i", [0, 0, 0])
        return connection.recv(), connection.recv_bytes(), connection.recv_bytes_into(numbers), list(numbers)


WHAT = [2.25, None, "junk", float], b"hello", 8, [42, 1729, 0]


def test_processes_share_a_key() -> None:
    """This means that (by default) all processes of a multi-process program will share a single authentication key
    which can be used when setting up connections between themselves."""
    with mp.connection.Listener(("localhost", 0), authkey=mp.current_process().authkey) as listener:
        process = start(say_with_own_key, listener.address)
        assert heard(listener) == WHAT
        assert ended(process) == 0


def say_with_own_key(address: Any) -> None:
    say(address, key=bytes(mp.current_process().authkey))


def test_connections_of_a_listener_can_be_sent_to_processes() -> None:
    """Connection objects themselves can now be transferred between processes using Connection.send() and
    Connection.recv(). (Those of sockets too.)"""
    with mp.connection.Listener(("localhost", 0)) as listener:
        mine = mp.connection.Client(listener.address)
        theirs = listener.accept()
    process = start(theirs.__class__.send, theirs, "from a process")
    theirs.close()
    assert mine.recv() == "from a process"
    assert ended(process) == 0
    mine.close()
