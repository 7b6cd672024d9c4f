"""A lock between the threads of a process, and its state in a forked child."""

from __future__ import annotations

import multiprocessing
import threading

from dragon.runtime.run import ProcessLock

LOCK = ProcessLock()


def take() -> None:
    with LOCK, LOCK:
        pass


def test_the_lock_is_free_in_a_child_although_a_thread_of_the_parent_holds_it() -> None:
    taken, end = threading.Event(), threading.Event()

    def hold() -> None:
        with LOCK:
            taken.set()
            end.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait(60)
    child = multiprocessing.get_context("fork").Process(target=take)
    child.start()
    child.join(30)
    end.set()
    thread.join()
    assert child.exitcode == 0


def test_a_thread_waits_for_another_thread_that_holds_the_lock() -> None:
    order = []

    def second() -> None:
        with LOCK:
            order.append("second")

    with LOCK:
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
