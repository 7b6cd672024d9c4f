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


def test_recv_blocks_until_a_message_or_the_end_of_the_pipe() -> None:
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


def test_poll_waits_for_at_most_its_timeout() -> None:
    """If timeout is not specified then it will return immediately. If timeout is a number then this specifies the
    maximum time in seconds to block. If timeout is None then an infinite timeout is used."""
    here, there = CONTEXT.Pipe()
    assert here.poll() is False
    assert here.poll(0.01) is False
    there.send(1)
    assert here.poll() is True
    assert here.poll(None) is True


def test_messages_of_bytes_are_sent_and_received() -> None:
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
    with pytest.raises(OSError, match="write-only"):
        here.recv_bytes()
    here.send("still writable")
    assert (there.recv(), here.closed, here.readable, here.writable) == ("still writable", False, False, True)


def test_a_connection_that_cannot_send_is_closed_by_a_message_that_is_too_long() -> None:
    here, there = CONTEXT.Pipe(duplex=False)
    there.send_bytes(b"long")
    with pytest.raises(OSError, match="limit"):
        here.recv_bytes(2)
    assert here.closed


def test_wait_returns_the_ready_connections() -> None:
    """Wait till an object in object_list is ready. Returns the list of those objects in object_list which are ready.
    If timeout is a float then the call blocks for at most that many seconds. A negative timeout is equivalent to a
    zero timeout."""
    pairs = [CONTEXT.Pipe() for _ in range(3)]
    assert mp.connection.wait([here for here, _ in pairs], 0.01) == []
    assert mp.connection.wait([here for here, _ in pairs], -1) == []
    pairs[1][1].send(1)
    assert mp.connection.wait([here for here, _ in pairs], LONG) == [pairs[1][0]]


def test_any_picklable_object_can_be_sent() -> None:
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


def test_a_part_of_a_buffer_can_be_sent() -> None:
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


def test_a_message_can_be_received_into_a_buffer() -> None:
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


def test_poll_without_a_timeout_waits_for_a_message() -> None:
    """If timeout is None then an infinite timeout is used."""
    a, b = CONTEXT.Pipe()
    threading.Timer(0.05, a.send, [1]).start()
    assert b.poll(None)
    assert b.recv() == 1


def test_a_connection_is_closed_at_the_end_of_its_with_block() -> None:
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


def test_a_connection_is_closed_when_it_is_garbage_collected() -> None:
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


def test_the_descriptor_of_a_connection_can_be_polled_for_messages() -> None:
    """Return the file descriptor or handle used by the connection."""
    a, b = CONTEXT.Pipe()
    assert select.select([b.fileno()], [], [], 0)[0] == []
    a.send(1)
    assert select.select([b], [], [], LONG)[0] == [b]
    assert b.recv() == 1


@pytest.mark.parametrize("method", ["recv", "recv_bytes", "recv_bytes_into"])
def test_every_receive_method_raises_eoferror_at_the_end(method: str) -> None:
    """Blocks until there is something to receive. Raises EOFError if there is nothing left to receive and the other end
    was closed."""
    a, b = CONTEXT.Pipe()
    arguments = (bytearray(3),) if method == "recv_bytes_into" else ()
    a.send_bytes(b"\x80\x04N.")  # None, pickled
    a.close()
    if method != "recv_bytes_into":
        getattr(b, method)()
    else:
        b.recv_bytes_into(bytearray(10))
    with pytest.raises(EOFError):
        getattr(b, method)(*arguments)


def test_an_offset_outside_the_buffer_is_an_error() -> None:
    """Offset must be a non-negative integer less than the length of buffer (in bytes)."""
    a, b = CONTEXT.Pipe()
    a.send_bytes(b"x")
    for offset in (-1, 4):
        with pytest.raises(ValueError, match="offset"):
            b.recv_bytes_into(bytearray(3), offset)
    assert b.recv_bytes_into(bytearray(3), 2) == 1


def test_an_object_is_sent_as_the_bytes_of_its_pickle() -> None:
    """a.send([1, 'hello', None]); b.recv() == [1, 'hello', None]; b.send_bytes(b'thank you'); a.recv_bytes() ==
    b'thank you'."""
    a, b = CONTEXT.Pipe()
    a.send([1, "hello", None])
    b.send_bytes(b"thank you")
    assert (b.recv(), a.recv_bytes()) == ([1, "hello", None], b"thank you")
    a.send("pickled")
    assert pickle.loads(b.recv_bytes()) == "pickled"
    b.send_bytes(pickle.dumps("by hand"))
    assert a.recv() == "by hand"


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


def test_wait_accepts_connections_sockets_and_sentinels() -> None:
    """An object can appear in object_list if it is a readable Connection object; a connected and readable
    socket.socket object; or the sentinel attribute of a Process object."""
    process = start(time.sleep, 60)
    (a, b), (mine, theirs) = CONTEXT.Pipe(), socket.socketpair()
    with mine, theirs:
        objects = [b, mine, process.sentinel]
        assert mp.connection.wait(objects, 0) == []
        a.send(1)
        assert mp.connection.wait(objects, LONG) == [b]
        theirs.send(b"x")
        process.kill()
        process.join(LONG)
        assert set(mp.connection.wait(objects, LONG)) == set(objects)


def test_wait_returns_a_connection_whose_other_end_was_closed() -> None:
    """A connection or socket object is ready when there is data available to be read from it, or the other end has been
    closed."""
    a, b = CONTEXT.Pipe()
    a.close()
    assert mp.connection.wait([b], LONG) == [b]
    with pytest.raises(EOFError):
        b.recv()


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


def test_wait_returns_messages_of_several_processes() -> None:
    """The following code uses wait() to wait for messages from multiple processes at once. (The writable end is closed
    by who has started the process, so that the process is the only one that owns a handle for it.)"""
    readers, processes, messages = [], [], []
    for _ in range(3):
        reader, writer = CONTEXT.Pipe(duplex=False)
        readers.append(reader)
        processes.append(start(send_numbers, writer))
        writer.close()
    while readers:
        for reader in mp.connection.wait(readers, LONG):
            try:
                messages.append(reader.recv())
            except EOFError:
                readers.remove(reader)
    names = [process.name for process in processes]
    assert sorted(messages) == sorted((number, name) for number in range(10) for name in names)
    assert [ended(process) for process in processes] == [0, 0, 0]


def send_numbers(connection: Any) -> None:
    for number in range(10):
        connection.send((number, mp.current_process().name))
    connection.close()
