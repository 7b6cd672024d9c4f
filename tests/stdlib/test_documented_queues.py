"""Guarantees of the standard library's documentation for queues.

Each test begins with the sentence that it tests, from https://docs.python.org/3/library/multiprocessing.html.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import Any

import pytest
from documented import CONTEXT, LONG, ended, start


def put(box: Any, *values: Any) -> None:
    for value in values:
        box.put(value)


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_put_and_get_raise_full_and_empty_at_their_timeout(kind: str) -> None:
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
    with pytest.raises(queue.Empty):
        box.get(block=False, timeout=99)
    box.put("item")
    full = [lambda: box.put(1, False), lambda: box.put_nowait(1), lambda: box.put(1, timeout=0.01)]
    for call in (*full, lambda: box.put(1, False, 99)):  # the timeout is ignored in that case
        with pytest.raises(queue.Full):
            call()
    assert (box.qsize(), box.full(), box.empty(), box.get()) == (1, True, False, "item")


def test_a_closed_queue_cannot_be_used() -> None:
    """If the queue is closed, ValueError is raised. SimpleQueue: get(), put() and empty() methods must no longer be
    called."""
    box, simple = CONTEXT.Queue(), CONTEXT.SimpleQueue()
    box.close()
    box.join_thread()
    simple.close()
    for call in (lambda: box.put(1), lambda: box.get(False)):
        with pytest.raises(ValueError, match="closed"):
            call()
    for call in (simple.get, simple.empty, lambda: simple.put(1)):
        with pytest.raises(OSError, match="closed"):
            call()


def test_join_waits_for_all_tasks() -> None:
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
    with pytest.raises(ValueError, match="too many"):
        box.task_done()


def test_several_processes_and_threads_put_and_get() -> None:
    """Queues are thread and process safe. They are multi-producer, multi-consumer FIFO queues."""
    box, results = CONTEXT.Queue(), CONTEXT.Queue()
    getters = [start(get_until_none, box, results) for _ in range(2)]
    putters = [start(put, box, *range(number * 100, number * 100 + 100)) for number in range(2)]
    threads = [threading.Thread(target=put, args=(box, *range(n * 100, n * 100 + 100))) for n in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert [ended(process) for process in putters] == [0, 0]
    put(box, None, None)
    got = [results.get(timeout=LONG) for _ in getters]
    assert sorted(got[0] + got[1]) == list(range(400))
    for numbers in got:  # what one has put comes in its order to each
        for n in range(4):
            assert [x for x in numbers if x // 100 == n] == sorted(x for x in numbers if x // 100 == n)
    assert [ended(process) for process in getters] == [0, 0]


def get_until_none(box: Any, results: Any) -> None:
    results.put(list(iter(box.get, None)))


def test_put_and_get_block_until_there_is_a_slot_or_an_item() -> None:
    """If the optional argument block is True (the default) and timeout is None (the default), block if necessary until
    a free slot is available (put), until an item is available (get)."""
    box, done = CONTEXT.Queue(1), threading.Event()
    box.put(1)
    thread = threading.Thread(target=lambda: (box.put(2), done.set()))
    thread.start()
    assert not done.wait(0.05)
    assert box.get() == 1
    assert done.wait(LONG)
    assert box.get() == 2
    thread.join(LONG)
    threading.Timer(0.05, box.put, ["item"]).start()
    assert box.get() == "item"


def test_a_size_below_one_is_no_limit() -> None:
    """maxsize sets the upperbound limit on the number of items. If maxsize is less than or equal to zero, the queue
    size is infinite. (queue.Queue, after which this one is modelled.)"""
    for size in (0, -1):
        box = CONTEXT.Queue(size)
        for number in range(100):
            box.put_nowait(number)
        assert not box.full()


def test_close_affects_only_the_calling_process() -> None:
    """Indicate that no more data will be put on this queue by the current process."""
    box = CONTEXT.Queue()
    assert ended(start(close, box)) == 0
    box.put("item")
    assert box.get(timeout=LONG) == "item"


def close(box: Any) -> None:
    box.close()


def test_the_thread_is_joined_once_the_queue_is_closed() -> None:
    """Join the background thread. It blocks until the background thread exits, ensuring that all data in the buffer has
    been flushed to the pipe. (There is no such thread here: the data is there at once.)"""
    box = CONTEXT.Queue()
    other = box_of_the_same(box)
    box.put("item")
    box.close()
    box.join_thread()
    assert other.get(False) == "item"


def box_of_the_same(box: Any) -> Any:
    """Return another object for the same queue."""
    there, here = CONTEXT.Pipe()
    there.send(box)
    return here.recv()


def test_a_process_can_end_after_cancel_join_thread() -> None:
    """The process can call cancel_join_thread() to make join_thread() do nothing. In particular, this prevents the
    background thread from being joined automatically when the process exits."""
    assert ended(start(put_and_cancel, CONTEXT.Queue())) == 0


def put_and_cancel(box: Any) -> None:
    box.cancel_join_thread()
    box.put(bytes(10**6))
    box.close()
    box.join_thread()


def test_a_simple_queue_is_used_by_several_processes() -> None:
    """get(): remove and return an item from the queue. put(item): put item into the queue. empty(): return True if the
    queue is empty, False otherwise."""
    box, back = CONTEXT.SimpleQueue(), CONTEXT.SimpleQueue()
    process = start(hand_back, box, back)
    box.put([42, None, "hello"])
    assert back.get() == [42, None, "hello"]
    assert ended(process) == 0
    assert (box.empty(), back.empty()) == (True, True)


def hand_back(box: Any, back: Any) -> None:
    back.put(box.get())
