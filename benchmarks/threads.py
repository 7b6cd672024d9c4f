"""Threads of one process that use the same object at once: rates of one thread and of two.

    python benchmarks/threads.py                 # threads; best with a free-threaded Python
    python benchmarks/threads.py --processes     # processes instead, which no interpreter keeps from each other

Two on two cores may be nearly twice as fast as one; the first row, which shares nothing, shows what the machine allows.
With a GIL the ratio shows what threads lose to each other. Each row is the median of several rounds, which take turns.
Reading a dictionary comes last: a free-threaded Python switches the GIL on for it.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import dragon  # noqa: F401 - registers the start method
from dragon.native import Barrier, Lock, Queue

CALLS = 400_000
PAYLOAD = b"0123456789"
KEYS = 100


def run(barrier: Barrier, times: Queue, work: Callable[[Any], None], shared: Any) -> None:
    """Call `work` once all have begun, and tell when that began and ended."""
    barrier.wait()
    begun = time.perf_counter()
    work(shared)
    times.put((begun, time.perf_counter()))


def elapsed(start: Callable[..., Any], work: Callable[[Any], None], shared: list[Any]) -> float:
    """Return the seconds in which workers that begin together have each called `work`, with one of `shared` each."""
    barrier, times = Barrier(len(shared) + 1), Queue()
    workers = [start(target=run, args=(barrier, times, work, one)) for one in shared]
    for worker in workers:
        worker.start()
    barrier.wait()
    begins, ends = zip(*(times.get() for _ in workers), strict=True)
    for worker in workers:
        worker.join()
    return max(ends) - min(begins)


def compute(_: None) -> None:
    """Add numbers."""
    total = 0
    for number in range(CALLS):
        total += number


def put(queue: Queue) -> None:
    """Put into a queue."""
    for _ in range(CALLS):
        queue.put(PAYLOAD)


def get(queue: Queue) -> None:
    """Get from a queue."""
    for _ in range(CALLS):
        queue.get()


def put_and_get(queue: Queue) -> None:
    """Put into a queue and get from it, by turns."""
    for _ in range(CALLS):
        queue.put(PAYLOAD)
        queue.get()


def hold(lock: Lock) -> None:
    """Acquire and release a lock."""
    for _ in range(CALLS):
        with lock:
            pass


def read(ddict: Any) -> None:
    """Read values of a dictionary."""
    for call in range(CALLS // 10):
        assert ddict[call % KEYS] == PAYLOAD


def computing(start: Callable[..., Any], workers: int) -> float:
    """Compute in all workers, which share nothing."""
    return elapsed(start, compute, [None] * workers)


def puts(start: Callable[..., Any], workers: int) -> float:
    """Put into one queue, from all workers."""
    queue = Queue(maxsize=workers * CALLS)
    seconds = elapsed(start, put, [queue] * workers)
    assert queue.qsize() == workers * CALLS
    queue.destroy()
    return seconds


def gets(start: Callable[..., Any], workers: int) -> float:
    """Get from one queue, in all workers."""
    queue = Queue(maxsize=workers * CALLS)
    for number in range(workers * CALLS):
        queue.put(number)
    seconds = elapsed(start, get, [queue] * workers)
    assert queue.empty()
    queue.destroy()
    return seconds


def own_queues(start: Callable[..., Any], workers: int) -> float:
    """Put into and get from a queue of each worker's own."""
    return elapsed(start, put_and_get, [Queue() for _ in range(workers)])


def locked(start: Callable[..., Any], workers: int) -> float:
    """Acquire and release one lock."""
    return elapsed(start, hold, [Lock()] * workers)


def own_locks(start: Callable[..., Any], workers: int) -> float:
    """Acquire and release a lock of each worker's own."""
    return elapsed(start, hold, [Lock() for _ in range(workers)])


def reads(start: Callable[..., Any], workers: int) -> float:
    """Read one dictionary, in all workers."""
    from dragon.data.ddict import DDict  # not before: its LMDB switches the GIL on

    ddict = DDict(1, 1, 2**26)
    for key in range(KEYS):
        ddict[key] = PAYLOAD
    seconds = elapsed(start, read, [ddict] * workers)
    ddict.destroy()
    return seconds


ROWS = {
    "compute, nothing shared": computing,
    "put into one queue": puts,
    "get from one queue": gets,
    "put and get, own queues": own_queues,
    "hold one lock": locked,
    "hold a lock each": own_locks,
    "read one dictionary": reads,
}


def main() -> None:
    """Measure all rows and print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of each row (default: 5)")
    parser.add_argument("--processes", action="store_true", help="workers are processes")
    arguments = parser.parse_args()
    rounds = arguments.rounds
    start = mp.get_context("dragon").Process if arguments.processes else threading.Thread
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)
    what = "processes" if arguments.processes else "threads"
    print(f"{what}, Python {platform.python_version()}, {'with a GIL' if has_gil() else 'without a GIL'}")
    for name, measure in ROWS.items():
        found = [(measure(start, 1), measure(start, 2)) for _ in range(rounds)]
        ratios = [2 * one / two for one, two in found]
        one = statistics.median(CALLS / (10 if measure is reads else 1) / seconds for seconds, _ in found)
        print(f"{name:24} {one:12,.0f}/s {statistics.median(ratios):6.2f} times with two", flush=True)


if __name__ == "__main__":
    main()
