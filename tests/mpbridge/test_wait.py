"""Waiting on connections with the standard library's own connection.wait()."""

from __future__ import annotations

import multiprocessing as mp
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest

import dragon  # noqa: F401 - registers the start method
from conftest import Site
from dragon.native.machine import System

context = mp.get_context("dragon")
COUNT = 3


def send_and_close(writers: Any) -> None:
    """Send messages on each connection that a queue delivers and close it, until None is delivered."""
    while (writer := writers.get()) is not None:
        for number in range(COUNT):
            if number == COUNT - 1:
                time.sleep(0.0002)  # the reader waits by now, and takes the last message as the end goes
            writer.send(number)
        writer.close()


@pytest.fixture
def sender() -> Iterator[Any]:
    """The queue of a process that sends messages on each connection put into it, and closes the connection."""
    queue = context.Queue()
    process = context.Process(target=send_and_close, args=(queue,))
    process.start()
    yield queue
    queue.put(None)
    process.join()


def send_from(sender: Any) -> Connection:
    reader, writer = context.Pipe(duplex=False)
    sender.put(writer)
    writer.close()
    return reader


def test_the_end_of_a_connection_is_never_missed(sender: Any) -> None:
    # Over two nodes, where tests/cluster runs it twice, a connection takes five times as long.
    for _ in range(5000 // System().nnodes ** 2):
        reader = send_from(sender)
        received = []
        try:
            while True:
                assert wait([reader], timeout=10) == [reader]
                received.append(reader.recv())
        except EOFError:
            reader.close()
        assert received == list(range(COUNT))


def test_wait_handles_several_connections_together(sender: Any) -> None:
    readers = [send_from(sender) for _ in range(20)]
    received = dict.fromkeys(readers, 0)
    while readers:
        for reader in wait(readers, timeout=30):
            try:
                assert reader.recv() == received[reader]
                received[reader] += 1
            except EOFError:
                readers.remove(reader)
    assert list(received.values()) == [COUNT] * 20


def test_modules_of_queues_and_connections_are_there_without_an_import(site: Site) -> None:
    done = site.python("""
        import dragon
        import multiprocessing as mp

        if __name__ == "__main__":
            mp.set_start_method("dragon")
            queue = mp.Queue()
            try:
                queue.get_nowait()
            except mp.queues.Empty:
                receiving, sending = mp.Pipe(duplex=False)
                sending.send("here")
                print(mp.connection.wait([receiving], 5) == [receiving])
        """)
    assert (done.stdout, done.stderr) == ("True\n", "")
