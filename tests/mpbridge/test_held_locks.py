"""The information that a lock of multiprocessing gives about its holder: `locked()` and its `repr()`."""

from __future__ import annotations

import multiprocessing as mp
import threading
from typing import Any

import pytest

import dragon  # noqa: F401 - registers the start method

context = mp.get_context("dragon")


def hold(lock: Any, held: Any, done: Any) -> None:
    with lock:
        held.set()
        done.wait()


@pytest.mark.parametrize("kind", ["Lock", "RLock", "Semaphore"])
def test_locked_is_true_while_another_process_holds_the_lock(kind: str) -> None:
    lock, held, done = getattr(context, kind)(), context.Event(), context.Event()
    assert not lock.locked()
    process = context.Process(target=hold, args=(lock, held, done))
    process.start()
    held.wait()
    assert lock.locked()
    done.set()
    process.join()
    assert not lock.locked()


@pytest.mark.parametrize(("kind", "more"), [("Lock", ""), ("RLock", ", nonzero")])
def test_the_repr_of_a_lock_says_that_another_thread_or_process_holds_it(kind: str, more: str) -> None:
    for start, text in ((context.Process, "SomeOtherProcess"), (threading.Thread, "SomeOtherThread")):
        lock, held, done = getattr(context, kind)(), context.Event(), context.Event()
        holder = start(target=hold, args=(lock, held, done))
        holder.start()
        held.wait()
        assert text + more in repr(lock)
        done.set()
        holder.join()
