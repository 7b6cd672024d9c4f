"""How fast this machine hands 1 MiB from one process to another at all: a copy into shared memory and one out of it.

    python benchmarks/copies.py [--messages 2000]

No queue can be faster with `bytes`, which belong to whoever has them. Two processes on two processors copy through
blocks of memory that they share, and look at a counter between; nothing else is done for a message.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing as mp
import struct
import time
from multiprocessing.shared_memory import SharedMemory

MIB = 1 << 20
COUNTER = struct.Struct("Q")
WRITTEN, READ = 0, 64  # offsets of the counters, each in a cache line of its own


def count(memory: SharedMemory, where: int) -> int:
    """Return the value of a counter."""
    return int(COUNTER.unpack_from(memory.buf, where)[0])


def read(name: str, blocks: int, messages: int) -> None:
    """Copy every message out of its block."""
    memory = SharedMemory(name)
    for message in range(messages):
        while count(memory, WRITTEN) <= message:
            pass
        begin = 4096 + message % blocks * MIB
        bytes(memory.buf[begin : begin + MIB])
        COUNTER.pack_into(memory.buf, READ, message + 1)
    memory.close()


def rate(blocks: int, messages: int) -> float:
    """Return the messages per second through `blocks` blocks."""
    memory = SharedMemory(create=True, size=4096 + blocks * MIB)
    memory.buf[:] = bytes(len(memory.buf))
    payload = b"x" * MIB
    reader = mp.get_context("fork").Process(target=read, args=(memory.name, blocks, messages))
    reader.start()
    for message in itertools.count():
        while message - count(memory, READ) >= blocks:
            pass
        if message == messages // 2:
            began = time.perf_counter()
        if message == messages:
            break
        begin = 4096 + message % blocks * MIB
        memory.buf[begin : begin + MIB] = payload
        COUNTER.pack_into(memory.buf, WRITTEN, message + 1)
    taken = time.perf_counter() - began
    reader.join()
    memory.close()
    memory.unlink()
    return (messages - messages // 2) / taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=2000)
    arguments = parser.parse_args()
    for blocks in (1, 2, 4, 8):
        rates = sorted(rate(blocks, arguments.messages) for _ in range(3))
        print(f"{blocks} blocks: {rates[1]:,.0f} messages of 1 MiB a second")


if __name__ == "__main__":
    main()
