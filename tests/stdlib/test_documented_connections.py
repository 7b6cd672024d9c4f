"""What the standard library's documentation promises of pipes and connections.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import array
import multiprocessing as mp
import multiprocessing.connection
import os
import threading
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


def test_pipes_are_duplex_unless_told_otherwise() -> None:
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


def test_recv_blocks_until_there_is_something_or_the_end() -> None:
    """Blocks until there is something to receive. Raises EOFError if there is nothing left to receive and the other end
    was closed."""
    here, there = CONTEXT.Pipe()
    process = start(send_and_close, there)
    there.close()
    assert here.recv() == "sent"
    with pytest.raises(EOFError):
        here.recv()
    ended(process)


def send_and_close(connection: Any) -> None:
    connection.send("sent")
    connection.close()


def test_poll() -> None:
    """If timeout is not specified then it will return immediately. If timeout is a number then this specifies the
    maximum time in seconds to block. If timeout is None then an infinite timeout is used."""
    here, there = CONTEXT.Pipe()
    assert here.poll() is False
    assert here.poll(0.01) is False
    there.send(1)
    assert here.poll() is True
    assert here.poll(None) is True


def test_bytes() -> None:
    """Return a complete message of byte data sent from the other end of the connection as a string. If maxlength is
    specified and the message is longer than maxlength then OSError is raised and the connection will no longer be
    readable. If the buffer is too short then a BufferTooShort exception is raised and the complete message is
    available as e.args[0]."""
    here, there = CONTEXT.Pipe()
    there.send_bytes(b"0123456789", 2, 5)
    assert here.recv_bytes() == b"23456"
    buffer = bytearray(8)
    there.send_bytes(b"abc")
    assert here.recv_bytes_into(buffer, 4) == 3
    assert bytes(buffer) == b"\0\0\0\0abc\0"
    there.send_bytes(b"much too long")
    with pytest.raises(mp.BufferTooShort) as caught:
        here.recv_bytes_into(bytearray(3))
    assert caught.value.args[0] == b"much too long"
    there.send_bytes(b"long")
    with pytest.raises(OSError, match="limit"):
        here.recv_bytes(2)
    with pytest.raises(OSError, match="closed"):
        here.recv_bytes()


def test_wait_for_several() -> None:
    """Wait till an object in object_list is ready. Returns the list of those objects in object_list which are ready.
    If timeout is a float then the call blocks for at most that many seconds. A negative timeout is equivalent to a
    zero timeout."""
    pairs = [CONTEXT.Pipe() for _ in range(3)]
    assert mp.connection.wait([here for here, _ in pairs], 0.01) == []
    assert mp.connection.wait([here for here, _ in pairs], -1) == []
    pairs[1][1].send(1)
    assert mp.connection.wait([here for here, _ in pairs], LONG) == [pairs[1][0]]


def test_any_object_that_can_be_pickled_is_sent() -> None:
    """Send an object to the other end of the connection which should be read using recv(). The object must be
    picklable."""
    a, b = CONTEXT.Pipe()
    for item in ([1, None, "x"], {"a": (1.5, b"b")}, Ellipsis, range(3)):
        a.send(item)
        assert b.recv() == item
    with pytest.raises((TypeError, AttributeError, ValueError)):
        a.send(threading.Lock())
    a.send("goes on")
    assert b.recv() == "goes on"


def test_a_part_of_a_buffer_is_sent() -> None:
    """If offset is given then data is read from that position in buffer. If size is given then that many bytes
    will be read from buffer."""
    a, b = CONTEXT.Pipe()
    a.send_bytes(b"0123456789", 2)
    a.send_bytes(bytearray(b"0123456789"), 2, 3)
    a.send_bytes(memoryview(b"0123456789"))
    assert [b.recv_bytes() for _ in range(3)] == [b"23456789", b"234", b"0123456789"]
    for offset, size in ((11, None), (-1, None), (0, 11), (5, -1)):
        with pytest.raises(ValueError):
            a.send_bytes(b"0123456789", offset, size)


def test_bytes_are_read_into_a_buffer() -> None:
    """Read into buffer a complete message of byte data sent from the other end of the connection and return the
    number of bytes in the message. buffer must be a writable bytes-like object. If offset is given then the
    message will be written into the buffer from that position."""
    a, b = CONTEXT.Pipe()
    numbers = array.array("i", [0] * 5)
    a.send_bytes(array.array("i", range(3)))
    assert b.recv_bytes_into(numbers, numbers.itemsize) == 3 * numbers.itemsize
    assert list(numbers) == [0, 0, 1, 2, 0]
    a.send_bytes(b"x")
    with pytest.raises((TypeError, BufferError)):
        b.recv_bytes_into(b"not writable")


def test_a_message_that_is_too_long_for_the_buffer_is_in_the_error() -> None:
    """If the buffer is too short then a BufferTooShort exception is raised and the complete message is available
    as e.args[0] where e is the exception instance."""
    a, b = CONTEXT.Pipe()
    a.send_bytes(b"0123456789")
    with pytest.raises(mp.BufferTooShort) as caught:
        b.recv_bytes_into(bytearray(3))
    assert caught.value.args[0] == b"0123456789"


def test_poll_without_a_limit_waits() -> None:
    """If timeout is None then an infinite timeout is used."""
    a, b = CONTEXT.Pipe()
    threading.Timer(0.05, a.send, [1]).start()
    assert b.poll(None)
    assert b.recv() == 1


def test_a_connection_that_is_left_is_closed() -> None:
    """Connection objects now support the context management protocol: __enter__() returns the connection object,
    and __exit__() calls close()."""
    a, b = CONTEXT.Pipe()
    with a as entered:
        assert entered is a
    assert a.closed
    with pytest.raises(OSError):
        a.send(1)
    with pytest.raises(EOFError):
        b.recv()


def test_a_connection_that_is_forgotten_is_closed() -> None:
    """Close the connection. This is called automatically when the connection is garbage collected."""
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
