"""Guarantees of the standard library's documentation for listeners, clients and authentication keys.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import multiprocessing.connection
import os
import stat
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from documented import CONTEXT, LONG, ended, start


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


def test_a_wrong_answer_to_a_challenge_is_an_error_of_both() -> None:
    """Otherwise AuthenticationError is raised. answer_challenge(): if a welcome message is not received, then
    AuthenticationError is raised."""
    here, there = CONTEXT.Pipe()
    box = CONTEXT.Queue()
    process = start(answer_wrongly, there, box)
    with pytest.raises(mp.AuthenticationError):
        mp.connection.deliver_challenge(here, b"key")
    assert box.get(timeout=LONG) == "AuthenticationError"
    assert ended(process) == 0


def answer_wrongly(connection: Any, box: Any) -> None:
    try:
        mp.connection.answer_challenge(connection, b"wrong")
    except mp.AuthenticationError as error:
        box.put(type(error).__name__)


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


def test_the_example_of_a_listener() -> None:
    """The following server code creates a listener which uses 'secret password' as an authentication key. It then
    waits for a connection and sends some data to the client. (Here the process calls.)"""
    with mp.connection.Listener(("localhost", 0), authkey=b"secret password") as listener:
        process = start(partial(say, key=b"secret password"), listener.address)
        assert heard(listener) == WHAT
        assert ended(process) == 0


def test_a_listener_without_a_key_does_not_authenticate() -> None:
    """No authentication is done if authkey is None."""
    with mp.connection.Listener(("localhost", 0)) as listener:
        process = start(say, listener.address)
        assert heard(listener) == WHAT
        assert ended(process) == 0


def test_processes_share_a_key() -> None:
    """This means that (by default) all processes of a multi-process program will share a single authentication key
    which can be used when setting up connections between themselves."""
    with mp.connection.Listener(("localhost", 0), authkey=mp.current_process().authkey) as listener:
        process = start(say_with_own_key, listener.address)
        assert heard(listener) == WHAT
        assert ended(process) == 0


def say_with_own_key(address: Any) -> None:
    say(address, key=bytes(mp.current_process().authkey))


def test_the_family_of_a_listener_follows_from_its_address(tmp_path: Path) -> None:
    """An 'AF_INET' address is a tuple of the form (hostname, port) where hostname is a string and port is an integer.
    An 'AF_UNIX' address is a string representing a filename on the filesystem. If family is None then the family is
    inferred from the format of address."""
    for address in (("localhost", 0), str(tmp_path / "socket")):
        with mp.connection.Listener(address) as listener:
            process = start(say, listener.address)
            assert heard(listener) == WHAT
            assert ended(process) == 0


def test_a_socket_without_an_address_is_in_a_private_folder() -> None:
    """Note that if family is 'AF_UNIX' and address is None then the socket will be created in a private temporary
    directory created using tempfile.mkstemp()."""
    with mp.connection.Listener(family="AF_UNIX") as listener:
        assert stat.S_IMODE(os.stat(os.path.dirname(listener.address)).st_mode) == 0o700
        process = start(say, listener.address, "AF_UNIX")
        assert heard(listener) == WHAT
        assert ended(process) == 0


def test_last_accepted_is_the_address_of_the_last_client() -> None:
    """The address from which the last accepted connection came. If this is unavailable then it is None."""
    with mp.connection.Listener(("localhost", 0)) as listener:
        assert listener.last_accepted is None
        process = start(say, listener.address)
        heard(listener)
        assert listener.last_accepted[0] == listener.address[0]
        assert ended(process) == 0


def test_a_closed_listener_accepts_no_connections() -> None:
    """__exit__() calls close(). Close the bound socket or named pipe of the listener object."""
    with mp.connection.Listener(("localhost", 0)) as listener:
        address = listener.address
    with pytest.raises(OSError, match="refused"):
        mp.connection.Client(address)
    with pytest.raises(OSError, match="closed"):
        listener.accept()


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
