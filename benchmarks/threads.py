"""Threads of one process that use the same object at once: rates of one thread and of two.

    python benchmarks/threads.py

With a free-threaded Python two threads on two cores may be nearly twice as fast as one. With a GIL the ratio shows what
they lose to each other. Each row is the median of several rounds, which take turns. Reading a dictionary comes last: a
free-threaded Python switches the GIL on for it.
"""

from __future__ import annotations

import argparse
import itertools
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable

from dragon.native import Lock, Queue

CALLS = 400_000
PAYLOAD = b"0123456789"


def elapsed(threads: int, work: Callable[[int], None]) -> float:
    """Return the seconds until `threads` threads, which begin together, have each called `work` with their number."""
    barrier = threading.Barrier(threads + 1)

    def run(number: int) -> None:
        barrier.wait()
        work(number)

    started = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in started:
        thread.start()
    barrier.wait()
    begun = time.perf_counter()
    for thread in started:
        thread.join()
    return time.perf_counter() - begun


def puts(threads: int) -> float:
    """Put into one queue, from all threads."""
    queue = Queue(maxsize=threads * CALLS)

    def put(number: int) -> None:
        for _ in range(CALLS):
            queue.put(PAYLOAD)

    seconds = elapsed(threads, put)
    assert queue.qsize() == threads * CALLS
    return seconds


def own_queues(threads: int) -> float:
    """Put into and get from a queue of each thread's own."""
    queues = [Queue() for _ in range(threads)]

    def put_and_get(number: int) -> None:
        queue = queues[number]
        for _ in range(CALLS):
            queue.put(PAYLOAD)
            queue.get()

    return elapsed(threads, put_and_get)


def gets(threads: int) -> float:
    """Get from one queue, in all threads."""
    queue = Queue(maxsize=threads * CALLS)
    for number in range(threads * CALLS):
        queue.put(number)
    taken: list[list[int]] = [[] for _ in range(threads)]

    def get(number: int) -> None:
        mine = taken[number]
        for _ in range(CALLS):
            mine.append(queue.get())

    seconds = elapsed(threads, get)
    assert sorted(itertools.chain(*taken)) == list(range(threads * CALLS))
    return seconds


def reads(threads: int) -> float:
    """Read one dictionary, in all threads."""
    from dragon.data.ddict import DDict

    ddict = DDict(1, 1, 2**26)
    for key in range(100):
        ddict[key] = PAYLOAD

    def read(number: int) -> None:
        for call in range(CALLS // 10):
            assert ddict[call % 100] == PAYLOAD

    seconds = elapsed(threads, read)
    ddict.destroy()
    return seconds


def locked(threads: int) -> float:
    """Acquire and release one lock, under which a number is incremented."""
    lock, count = Lock(), [0]

    def count_up(number: int) -> None:
        for _ in range(CALLS):
            with lock:
                count[0] += 1

    seconds = elapsed(threads, count_up)
    assert count == [threads * CALLS]
    return seconds


ROWS = {
    "put into one queue": puts,
    "get from one queue": gets,
    "put and get, own queues": own_queues,
    "hold one lock": locked,
    "read one dictionary": reads,
}


def main() -> None:
    """Measure all rows and print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of each row (default: 5)")
    rounds = parser.parse_args().rounds
    has_gil = getattr(sys, "_is_gil_enabled", lambda: True)
    print(f"Python {platform.python_version()}, {'with a GIL' if has_gil() else 'without a GIL'}")
    for name, measure in ROWS.items():
        found = [(measure(1), measure(2)) for _ in range(rounds)]
        ratios = [2 * one / two for one, two in found]
        one = statistics.median(CALLS / (10 if measure is reads else 1) / seconds for seconds, _ in found)
        print(f"{name:24} {one:12,.0f}/s {statistics.median(ratios):6.2f} times with two threads", flush=True)


if __name__ == "__main__":
    main()
