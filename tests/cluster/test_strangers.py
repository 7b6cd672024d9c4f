"""Agents refuse connections without a certificate of the run, and the run is not disturbed."""

from __future__ import annotations

import json
import os
import resource
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from conftest import Site
from dragon.runtime.credentials import Authority, client_context, node_name

PROGRAM = """
    import json, sys
    import dragon
    from dragon.infrastructure.policy import Policy
    from dragon.native.process import Process
    from dragon.native.queue import Queue
    from dragon.runtime.run import this_run

    def echo(there, back):
        back.put(this_run().agent.pid)
        while (item := there.get()) is not None:
            back.put(item)

    if __name__ == "__main__":
        there, back = Queue(), Queue()
        policy = Policy(placement=Policy.Placement.HOST_NAME, host_name="node-1")
        process = Process(echo, (there, back), policy=policy)
        process.start()
        print(json.dumps([this_run().agent.pid, back.get()]), flush=True)
        for line in sys.stdin:
            there.put(line)
            print(back.get(), end="", flush=True)
        there.put(None)
        process.join()
"""


class Running:
    def __init__(self, site: Site) -> None:
        command = [sys.executable, "-m", "dragon", "--nodes", "2", site.write(PROGRAM)]
        self.process = site.start(*command, stdin=subprocess.PIPE)
        agents = json.loads(self.read())
        self.ports = [
            connection.laddr.port
            for agent in agents
            for connection in psutil.Process(agent).net_connections()
            if connection.status == psutil.CONN_LISTEN
        ]

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def echoes(self, line: str) -> bool:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.read() == line + "\n"

    def end(self) -> str:
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, out + err
        return err


@pytest.fixture
def running(site: Site) -> Iterator[Running]:
    """Start a program that exchanges messages between two nodes."""
    running = Running(site)
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.communicate()


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(20)
    try:
        while connection.recv(4096):
            pass
    except (ConnectionError, ssl.SSLError):
        return True
    return True


def test_garbage_is_refused(running: Running) -> None:
    for port in running.ports:
        for data in (os.urandom(4096), b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64):
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(data)
                assert is_closed(stranger)
    assert running.echoes("still here")
    running.end()


def test_a_silent_connection_is_closed(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.ports[0])) as stranger:
        assert is_closed(stranger)
    assert running.echoes("still here")
    running.end()


def test_a_caller_without_a_certificate_is_refused(running: Running) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", running.ports[0])) as plain, context.wrap_socket(plain) as stranger:
        assert is_closed(stranger)
    assert running.echoes("still here")
    running.end()


def test_a_certificate_of_another_run_is_refused(running: Running) -> None:
    other = Authority()
    context = client_context(other.certificate, *other.issue(node_name(1)))
    with (
        socket.create_connection(("127.0.0.1", running.ports[0])) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(plain)
    assert running.echoes("still here")
    running.end()


def test_a_refused_connection_is_logged_once(running: Running) -> None:
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", running.ports[0])) as stranger:
            stranger.sendall(b"\0" * 64)
            assert is_closed(stranger)
    assert running.echoes("still here")
    err = running.end()
    assert err.count("refused") == 1, err
    assert "Traceback" not in err


def test_many_silent_connections_do_not_prevent_connections_between_nodes(running: Running) -> None:
    """Send a large message, for which the nodes make a separate connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    try:
        strangers = [socket.socket() for _ in range(1500)]
        for stranger in strangers:
            stranger.setblocking(False)
            stranger.connect_ex(("127.0.0.1", running.ports[0]))
        assert running.echoes("x" * 2**20)
        assert running.echoes("still here")
        for stranger in strangers:
            stranger.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "lost" not in running.end()
