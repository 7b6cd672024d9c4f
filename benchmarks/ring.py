"""More busy processes than processors: a message goes around a ring, and several at once.

python benchmarks/ring.py [--stdlib] [--processes 16] [--messages 1] [--laps 300]
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing as mp
import time
from typing import Any


def pass_on(source: Any, target: Any) -> None:
    """Forward every message to the next process, and None last."""
    while (message := source.get()) is not None:
        target.put(message)
    target.put(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stdlib", action="store_true", help="the standard library's own processes and queues")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--messages", type=int, default=1, help="messages in the ring at once")
    parser.add_argument("--laps", type=int, default=300)
    arguments = parser.parse_args()
    if not arguments.stdlib:
        import dragon  # noqa: F401 - registers the start method
    mp.set_start_method("fork" if arguments.stdlib else "dragon")
    queues = [mp.Queue() for _ in range(arguments.processes)]
    ring = [mp.Process(target=pass_on, args=pair) for pair in itertools.pairwise(queues)]
    for process in ring:
        process.start()
    first, last = queues[0], queues[-1]
    for message in range(arguments.messages):
        first.put(message)
    for _ in range(arguments.messages):
        first.put(last.get())
    start = time.perf_counter()
    for _ in range(arguments.laps * arguments.messages):
        first.put(last.get())
    seconds = time.perf_counter() - start
    hops = arguments.laps * arguments.messages * arguments.processes
    print(f"{hops / seconds:,.0f} messages/s through {arguments.processes} processes, {arguments.messages} at once")
    for _ in range(arguments.messages):
        last.get()
    first.put(None)
    for process in ring:
        process.join()


if __name__ == "__main__":
    main()
