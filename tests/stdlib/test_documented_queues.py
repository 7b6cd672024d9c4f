"""What the standard library's documentation promises of queues.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import multiprocessing as mp
import queue
import threading
import time
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


def put(box: Any, *values: Any) -> None:
    for value in values:
        box.put(value)


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_queues_time_out_as_documented(kind: str) -> None:
    """If timeout is a positive number, it blocks at most timeout seconds and raises the queue.Full exception if no free
    slot was available within that time. Otherwise (block is False), put an item on the queue if a free slot is
    immediately available, else raise the queue.Full exception."""
    box = getattr(CONTEXT, kind)(1)
    with pytest.raises(queue.Empty):
        box.get(False)
    with pytest.raises(queue.Empty):
        box.get_nowait()
    with pytest.raises(queue.Empty):
        box.get(timeout=0.01)
    box.put("item")
    for call in (lambda: box.put(1, False), lambda: box.put_nowait(1), lambda: box.put(1, timeout=0.01)):
        with pytest.raises(queue.Full):
            call()
    assert (box.qsize(), box.full(), box.empty(), box.get()) == (1, True, False, "item")


def test_closed_queues_take_and_give_nothing() -> None:
    """If the queue is closed, ValueError is raised."""
    box = CONTEXT.Queue()
    box.close()
    box.join_thread()
    for call in (lambda: box.put(1), lambda: box.get(False)):
        with pytest.raises(ValueError, match="closed"):
            call()


def test_order_of_one_process() -> None:
    """If a process puts several objects they come in that order (queues are first-in first-out)."""
    box = CONTEXT.Queue()
    ended(start(put, box, *range(100)))
    assert [box.get(timeout=LONG) for _ in range(100)] == list(range(100))


def test_joinable_queues() -> None:
    """Blocks until all items in the queue have been gotten and processed. Raises a ValueError if called more times than
    there were items placed in the queue."""
    box = CONTEXT.JoinableQueue()
    put(box, 1, 2)
    process = start(process_all, box, 2)
    box.join()
    assert box.empty()
    with pytest.raises(ValueError, match="too many"):
        box.task_done()
    ended(process)


def process_all(box: Any, count: int) -> None:
    for _ in range(count):
        box.get()
        box.task_done()


def test_simple_queues() -> None:
    """It is a simplified Queue type, very close to a locked Pipe: empty(), get(), put(), close()."""
    box = CONTEXT.SimpleQueue()
    assert box.empty()
    box.put("item")
    assert not box.empty()
    assert box.get() == "item"
    box.close()


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
    assert ended(start(put_and_leave, box)) == 0
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
