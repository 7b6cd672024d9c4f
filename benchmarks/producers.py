"""Small messages from several producers to several consumers through one queue.

python benchmarks/producers.py [--stdlib] [--producers 4] [--consumers 4] [--messages 20000]
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import time
from typing import Any


def produce(queue: Any, ready: Any, start: Any, count: int) -> None:
    """Put `count` messages after all processes have begun."""
    ready.put(None)
    start.wait()
    for _ in range(count):
        queue.put(b"0123456789")


def consume(queue: Any, ready: Any) -> None:
    """Get messages until None arrives."""
    ready.put(None)
    while queue.get() is not None:
        pass
    ready.put(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stdlib", action="store_true", help="the standard library's own processes and queues")
    parser.add_argument("--producers", type=int, default=4)
    parser.add_argument("--consumers", type=int, default=4)
    parser.add_argument("--messages", type=int, default=20000, help="of each producer")
    arguments = parser.parse_args()
    if not arguments.stdlib:
        import dragon  # noqa: F401 - registers the start method
    mp.set_start_method("fork" if arguments.stdlib else "dragon")
    queue, ready, start = mp.Queue(), mp.Queue(), mp.Event()
    producers = [
        mp.Process(target=produce, args=(queue, ready, start, arguments.messages)) for _ in range(arguments.producers)
    ]
    consumers = [mp.Process(target=consume, args=(queue, ready)) for _ in range(arguments.consumers)]
    for process in producers + consumers:
        process.start()
    for _ in producers + consumers:
        ready.get()
    began = time.perf_counter()
    start.set()
    for process in producers:
        process.join()
    for _ in consumers:
        queue.put(None)
    for _ in consumers:
        ready.get()
    seconds = time.perf_counter() - began
    rate = arguments.producers * arguments.messages / seconds
    print(f"{rate:,.0f} messages/s, {arguments.producers} producers and {arguments.consumers} consumers")
    for process in consumers:
        process.join()


if __name__ == "__main__":
    main()
