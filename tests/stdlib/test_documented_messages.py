"""What the standard library's documentation of multiprocessing promises of queues, connections and synchronization,
beyond test_documented_processes.py.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import array
import ctypes
import multiprocessing as mp
import os
import queue
import threading
import time
from typing import Any

import pytest

import dragon  # noqa: F401

LONG = 30
CONTEXT: Any = mp.get_context("dragon")


def started(target: Any, *args: Any) -> Any:
    process = CONTEXT.Process(target=target, args=args)
    process.start()
    return process


def ended(process: Any) -> Any:
    process.join(LONG)
    return process.exitcode


# ---- contexts and start methods


def test_the_methods_are_listed_and_the_name_of_one_is_told() -> None:
    """Returns a list of the supported start methods, the first of which is the default. get_start_method(): return
    the name of start method used for starting processes."""
    assert {"fork", "spawn", "forkserver", "dragon"} <= set(mp.get_all_start_methods())
    assert CONTEXT.get_start_method() == "dragon"


def test_a_context_of_no_method_is_refused() -> None:
    """ValueError is raised if the specified start method is not available."""
    with pytest.raises(ValueError, match="cannot find context for 'none'"):
        mp.get_context("none")


def test_a_context_has_the_same_attributes_as_the_module() -> None:
    """Return a context object which has the same attributes as the multiprocessing module."""
    spawn = mp.get_context("spawn")
    assert {name for name in mp.__all__ if hasattr(spawn, name) and not hasattr(CONTEXT, name)} == set()


# ---- queues


def test_put_nowait_and_get_nowait() -> None:
    """put_nowait(obj): equivalent to put(obj, False). get_nowait(): equivalent to get(False)."""
    box = CONTEXT.Queue(1)
    box.put_nowait("x")
    with pytest.raises(queue.Full):
        box.put_nowait("y")
    with pytest.raises(queue.Full):
        box.put("y", False, 99)  # timeout is ignored in that case
    assert box.get_nowait() == "x"
    with pytest.raises(queue.Empty):
        box.get_nowait()
    with pytest.raises(queue.Empty):
        box.get(block=False, timeout=99)


def test_a_get_with_a_timeout_raises_empty() -> None:
    """If timeout is a positive number, it blocks at most timeout seconds and raises the queue.Empty exception if
    no item was available within that time."""
    begun = time.monotonic()
    with pytest.raises(queue.Empty):
        CONTEXT.Queue().get(timeout=0.1)
    assert 0.1 <= time.monotonic() - begun < LONG


def test_sizes_of_a_queue() -> None:
    """Return the approximate size of the queue. Return True if the queue is empty, False otherwise. Return True if
    the queue is full, False otherwise."""
    box = CONTEXT.Queue(2)
    assert (box.qsize(), box.empty(), box.full()) == (0, True, False)
    box.put(1)
    assert (box.qsize(), box.empty(), box.full()) == (1, False, False)
    box.put(2)
    assert (box.qsize(), box.empty(), box.full()) == (2, False, True)


def put_and_leave(box: Any) -> None:
    box.put(bytes(10**6))
    box.close()
    box.join_thread()


def test_what_was_put_is_there_after_its_process_has_ended() -> None:
    """By default if a process is not the creator of the queue then on exit it will attempt to join the queue's
    background thread. (So what it has put is not lost.)"""
    box = CONTEXT.Queue()
    assert ended(started(put_and_leave, box)) == 0
    assert len(box.get(timeout=LONG)) == 10**6


def test_who_waits_for_tasks_waits_for_all_of_them() -> None:
    """The count of unfinished tasks goes up whenever an item is added to the queue. The count goes down whenever a
    consumer calls task_done() to indicate that the item was retrieved and all work on it is complete. When the
    count of unfinished tasks drops to zero, join() unblocks."""
    box = CONTEXT.JoinableQueue()
    for number in range(3):
        box.put(number)
    joined = threading.Event()
    threading.Thread(target=lambda: (box.join(), joined.set())).start()
    for _ in range(3):
        assert not joined.is_set()
        box.get(timeout=LONG)
        time.sleep(0.01)
        assert not joined.is_set()
        box.task_done()
    assert joined.wait(LONG)


# ---- connections


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
    process = started(hand_on, b)
    a.send(theirs)
    assert mine.recv() == process.pid
    assert ended(process) == 0


# ---- synchronization


@pytest.mark.parametrize("kind", ["Lock", "RLock", "Semaphore", "BoundedSemaphore"])
def test_acquire_says_whether_it_was_acquired(kind: str) -> None:
    """With the block argument set to False, the method call does not block. When invoked with a positive,
    floating-point value for timeout, block for at most the number of seconds specified by timeout as long as the
    lock can not be acquired. Invocations with a negative value for timeout are equivalent to a timeout of zero."""
    lock = getattr(CONTEXT, kind)()
    got: list[Any] = []
    assert lock.acquire() is True
    thread = threading.Thread(
        target=lambda: got.extend([lock.acquire(False), lock.acquire(True, 0.01), lock.acquire(True, -1)])
    )
    thread.start()
    thread.join(LONG)
    assert got == [False, False, False]
    lock.release()
    with lock:
        assert True


def test_a_condition_is_notified() -> None:
    """Condition: a condition variable, an alias for threading.Condition; notify(n) wakes up at most n of the tasks
    waiting for it."""
    condition, waiting, woken = CONTEXT.Condition(), CONTEXT.Semaphore(0), CONTEXT.Semaphore(0)
    processes = [started(wait_for_it, condition, waiting, woken) for _ in range(3)]
    for _ in processes:
        assert waiting.acquire(timeout=LONG)
    with condition:  # all wait now, as each holds the lock until it does
        condition.notify(2)
    assert woken.acquire(timeout=LONG)
    assert woken.acquire(timeout=LONG)
    assert not woken.acquire(timeout=0.1)
    with condition:
        condition.notify_all()
    assert [ended(process) for process in processes] == [0, 0, 0]


def wait_for_it(condition: Any, waiting: Any, woken: Any) -> None:
    with condition:
        waiting.release()
        assert condition.wait(LONG)
    woken.release()


def test_an_event_is_waited_for() -> None:
    """Event: wait(timeout) blocks until the internal flag is true, and returns whether it is."""
    event = CONTEXT.Event()
    assert event.wait(0.01) is False
    process = started(event.set)
    assert event.wait(LONG) is True
    event.clear()
    assert not event.is_set()
    assert ended(process) == 0


def test_a_barrier_has_an_action_and_can_be_broken() -> None:
    """Barrier(parties[, action[, timeout]]): a barrier object: a clone of threading.Barrier. (Whoever is last
    calls the action; abort() puts the barrier into a broken state, reset() returns it to the empty one.)"""
    barrier = CONTEXT.Barrier(1, lambda: called.append(1), 5)
    called: list[int] = []
    assert barrier.wait() == 0
    assert (called, barrier.parties, barrier.n_waiting, barrier.broken) == ([1], 1, 0, False)
    barrier.abort()
    assert barrier.broken
    with pytest.raises(threading.BrokenBarrierError):
        barrier.wait()
    barrier.reset()
    assert barrier.wait() == 0


# ---- shared ctypes


def add(value: Any, times: int) -> None:
    for _ in range(times):
        with value.get_lock():
            value.value += 1


def test_a_value_is_changed_by_several_processes_under_its_lock() -> None:
    """Operations like += which involve a read and write are not atomic. So if, for instance, you want to
    atomically increment a shared value it is insufficient to just do counter.value += 1; you can do: with
    counter.get_lock(): counter.value += 1."""
    counter = CONTEXT.Value("i", 0)
    processes = [started(add, counter, 500) for _ in range(3)]
    assert [ended(process) for process in processes] == [0, 0, 0]
    assert counter.value == 1500


def test_a_lock_that_is_given_is_the_one() -> None:
    """If lock is a Lock or RLock object then that will be used to synchronize access to the value."""
    lock = CONTEXT.RLock()
    value = CONTEXT.Value("d", 1.5, lock=lock)
    numbers = CONTEXT.Array("h", 3, lock=lock)
    assert value.get_lock() is lock
    assert numbers.get_lock() is lock
    assert value.get_obj().value == 1.5
    assert list(numbers.get_obj()) == [0, 0, 0]
    with pytest.raises(AttributeError):
        CONTEXT.Value("d", 1.5, lock="no lock")


def test_an_array_of_characters_is_text() -> None:
    """Note that an array of ctypes.c_char has value and raw attributes which allow one to use it to store and
    retrieve strings."""
    text = CONTEXT.Array("c", b"hello")
    assert (text.value, text.raw) == (b"hello", b"hello")
    text.value = b"bye"
    assert (text.value, text.raw, text[1], text[:2]) == (b"bye", b"bye\0o", b"y", b"by")
    assert CONTEXT.Array(ctypes.c_char, 4).raw == bytes(4)


def test_an_array_is_a_sequence() -> None:
    """size_or_initializer is a sequence which is used to initialize the array and whose length determines the
    length of the array."""
    numbers = CONTEXT.Array("i", range(5))
    assert (len(numbers), numbers[-1], numbers[1:4], list(numbers)) == (5, 4, [1, 2, 3], [0, 1, 2, 3, 4])
    numbers[1:3] = [7, 8]
    assert list(numbers) == [0, 7, 8, 3, 4]
    with pytest.raises(IndexError):
        numbers[5] = 1
    with pytest.raises(TypeError):
        numbers[0] = "x"
