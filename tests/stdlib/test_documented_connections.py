"""Guarantees of the standard library's documentation for pipes and connections.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import array
import multiprocessing as mp
import multiprocessing.connection
import os
import pickle
import select
import signal
import socket
import threading
import time
from typing import Any

import pytest
from documented import CONTEXT, LONG, ended, start


def test_pipes_are_duplex_by_default() -> None:
    """If duplex is True (the default) then the pipe is bidirectional. If duplex is False then the pipe is
    unidirectional: conn1 can only be used for receiving messages and conn2 can only be used for sending messages."""
    first, second = CONTEXT.Pipe()
    first.send(1)
    second.send(2)
    assert (first.recv(), second.recv()) == (2, 1)
    receiving, sending = CONTEXT.Pipe(False)
    sending.send("sent")
    assert receiving.recv() == "sent"
    with pytest.raises(OSError, match="read-only"):
        receiving.send(1)
    with pytest.raises(OSError, match="write-only"):
        sending.recv()


@pytest.mark.parametrize("receive", [("recv",), ("recv_bytes",), ("recv_bytes_into", bytearray(30))])
def test_receiving_blocks_until_a_message_or_the_end_of_the_pipe(receive: Any) -> None:
    """Blocks until there is something to receive. Raises EOFError if there is nothing left to receive and the other end
    was closed."""
    here, there = CONTEXT.Pipe()
    process = start(send_and_close, there)
    there.close()
    method, *arguments = receive
    getattr(here, method)(*arguments)
    with pytest.raises(EOFError):
        getattr(here, method)(*arguments)
    assert ended(process) == 0


def send_and_close(connection: Any) -> None:
    connection.send("sent")
    connection.close()


def test_poll_waits_for_at_most_its_timeout() -> None:
    """If timeout is not specified then it will return immediately. If timeout is a number then this specifies the
    maximum time in seconds to block. If timeout is None then an infinite timeout is used."""
    here, there = CONTEXT.Pipe()
    assert here.poll() is False
    assert here.poll(0.01) is False
    threading.Timer(0.05, there.send, [1]).start()
    assert here.poll(None) is True
    assert here.poll() is True


def test_a_part_of_a_buffer_can_be_sent() -> None:
    """Send byte data from a bytes-like object as a complete message. If offset is given then data is read from that
    position in buffer. If size is given then that many bytes will be read from buffer."""
    here, there = CONTEXT.Pipe()
    there.send_bytes(b"0123456789", 2)
    there.send_bytes(bytearray(b"0123456789"), 2, 3)
    there.send_bytes(memoryview(b"0123456789"))
    assert [here.recv_bytes() for _ in range(3)] == [b"23456789", b"234", b"0123456789"]
    for offset, size in ((11, None), (-1, None), (0, 11), (5, -1)):
        with pytest.raises(ValueError):
            there.send_bytes(b"0123456789", offset, size)


def test_a_message_can_be_received_into_a_buffer() -> None:
    """Read into buffer a complete message of byte data and return the number of bytes in the message. buffer must be a
    writable bytes-like object. Offset must be a non-negative integer less than the length of buffer (in bytes). If the
    buffer is too short then a BufferTooShort exception is raised and the complete message is available as e.args[0]."""
    here, there = CONTEXT.Pipe()
    numbers = array.array("i", [0] * 5)
    there.send_bytes(array.array("i", range(3)))
    assert here.recv_bytes_into(numbers, numbers.itemsize) == 3 * numbers.itemsize
    assert list(numbers) == [0, 0, 1, 2, 0]
    there.send_bytes(b"x")
    for offset in (-1, 4):
        with pytest.raises(ValueError, match="offset"):
            here.recv_bytes_into(bytearray(3), offset)
    assert here.recv_bytes_into(bytearray(3), 2) == 1
    there.send_bytes(b"much too long")
    with pytest.raises(mp.BufferTooShort) as caught:
        here.recv_bytes_into(bytearray(3))
    assert caught.value.args[0] == b"much too long"
    there.send_bytes(b"x")
    with pytest.raises((TypeError, BufferError)):
        here.recv_bytes_into(b"not writable")


def test_a_message_that_is_too_long_ends_receiving() -> None:
    """If maxlength is specified and the message is longer than maxlength then OSError is raised and the connection will
    no longer be readable."""
    here, there = CONTEXT.Pipe()
    there.send_bytes(b"long")
    with pytest.raises(OSError, match="limit"):
        here.recv_bytes(2)
    with pytest.raises(OSError, match="write-only"):
        here.recv_bytes()
    here.send("still writable")
    assert (there.recv(), here.closed, here.readable, here.writable) == ("still writable", False, False, True)
    one_way, there = CONTEXT.Pipe(duplex=False)
    there.send_bytes(b"long")
    with pytest.raises(OSError, match="limit"):
        one_way.recv_bytes(2)
    assert one_way.closed  # it can neither send nor receive


def test_any_picklable_object_can_be_sent() -> None:
    """Send an object to the other end of the connection which should be read using recv(). The object must be
    picklable. (It is sent as the bytes of its pickle.)"""
    a, b = CONTEXT.Pipe()
    for item in ([1, None, "x"], {"a": (1.5, b"b")}, Ellipsis, range(3)):
        a.send(item)
        assert b.recv() == item
    with pytest.raises((TypeError, AttributeError, ValueError)):
        a.send(threading.Lock())
    a.send("pickled")
    assert pickle.loads(b.recv_bytes()) == "pickled"
    b.send_bytes(pickle.dumps("by hand"))
    assert a.recv() == "by hand"


def test_a_connection_is_closed_at_the_end_of_its_with_block_and_when_it_is_collected() -> None:
    """__enter__() returns the connection object, and __exit__() calls close(). This is called automatically when the
    connection is garbage collected."""
    a, b = CONTEXT.Pipe()
    with a as entered:
        assert entered is a
    assert a.closed
    with pytest.raises(OSError):
        a.send(1)
    with pytest.raises(EOFError):
        b.recv()
    a, b = CONTEXT.Pipe()
    del a
    with pytest.raises(EOFError):
        b.recv()


def hand_on(connection: Any) -> None:
    inner = connection.recv()
    inner.send(os.getpid())


def test_connections_can_be_sent_over_connections() -> None:
    """The multiprocessing.reduction module makes connections picklable: what connections are for other
    processes."""
    a, b = CONTEXT.Pipe()
    mine, theirs = CONTEXT.Pipe()
    process = start(hand_on, b)
    a.send(theirs)
    assert mine.recv() == process.pid
    assert ended(process) == 0


def test_the_descriptor_of_a_connection_can_be_polled_for_messages() -> None:
    """Return the file descriptor or handle used by the connection."""
    a, b = CONTEXT.Pipe()
    assert select.select([b.fileno()], [], [], 0)[0] == []
    a.send(1)
    assert select.select([b], [], [], LONG)[0] == [b]
    assert b.recv() == 1


def test_both_ends_of_a_pipe_can_be_used_at_the_same_time() -> None:
    """Of course there is no risk of corruption from processes using different ends of the pipe at the same time."""
    a, b = CONTEXT.Pipe()
    process = start(send_and_receive, b)
    send_and_receive(a)
    assert ended(process) == 0


def send_and_receive(connection: Any) -> None:
    numbers = list(range(300))
    thread = threading.Thread(target=lambda: [connection.send([n] * 50) for n in numbers])
    thread.start()
    assert [connection.recv() for _ in numbers] == [[n] * 50 for n in numbers]
    thread.join(LONG)


# ---- wait()


def test_wait_returns_the_connections_sockets_and_sentinels_that_are_ready() -> None:
    """Wait till an object in object_list is ready: a readable Connection object; a connected and readable socket; or
    the sentinel attribute of a Process object. A connection or socket object is ready when there is data available to
    be read from it, or the other end has been closed. A negative timeout is equivalent to a zero timeout."""
    process = start(time.sleep, 60)
    (a, b), (c, d), (mine, theirs) = CONTEXT.Pipe(), CONTEXT.Pipe(), socket.socketpair()
    with mine, theirs:
        objects = [b, d, mine, process.sentinel]
        for timeout in (0, 0.01, -1):
            assert mp.connection.wait(objects, timeout) == []
        a.send(1)
        assert mp.connection.wait(objects, LONG) == [b]
        c.close()
        theirs.send(b"x")
        process.kill()
        process.join(LONG)
        assert set(mp.connection.wait(objects, LONG)) == set(objects)


def test_wait_continues_after_a_signal() -> None:
    """If select.select() is interrupted by a signal, it can raise OSError with an error number of EINTR, whereas wait()
    will not."""
    a, b = CONTEXT.Pipe()
    process = start(wait_while_signalled, b)
    assert b.poll(0) is False
    assert a.recv() == "waiting"
    for _ in range(3):
        os.kill(process.pid, signal.SIGUSR1)
    assert a.recv() == "signalled"
    a.send("message")
    assert ended(process) == 0


def wait_while_signalled(connection: Any) -> None:
    signal.signal(signal.SIGUSR1, lambda *_: connection.send("signalled"))
    connection.send("waiting")
    assert mp.connection.wait([connection], LONG) == [connection]
