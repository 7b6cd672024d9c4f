"""Random programs whose processes, on all nodes, send more than the run's memory holds.

Each message must arrive once, and those of one process in their order.

    DRAGON_ARENA_SIZE=80m dragon --nodes 3 tests/pressure.py --seconds 60 --seed 1
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import queue
import random
import time
from typing import Any

import dragon  # noqa: F401
from dragon.infrastructure.policy import Policy
from dragon.native.machine import System
from dragon.native.process import Process

LARGE = [100_000, 700_000, 3_000_000]  # bytes


def send(way: tuple[Any, bool], message: Any, rng: random.Random) -> None:
    """Send a message in one of the ways that the channel has, again while there is no room or memory for it.

    `way` is the channel, and whether it may have no room.
    """
    channel, may_be_full = way
    ways = [channel.send] if hasattr(channel, "send") else [channel.put]
    if isinstance(channel, type(mp.get_context("dragon").Queue())):
        ways += [channel.put_nowait, lambda item: channel.put(item, timeout=rng.random() * 0.01)]
    while True:
        try:
            rng.choice(ways)(message)
            return
        except MemoryError:
            time.sleep(0.01)
        except queue.Full:
            if not may_be_full:
                raise
            time.sleep(0.01)


def produce(sender: int, seed: float, channels: list[tuple[Any, bool]], count: int, sent: Any) -> None:
    """Send `count` numbered messages of random sizes into random channels, then report how many into each."""
    rng = random.Random(seed)
    numbers = [0] * len(channels)
    for _ in range(count):
        which = rng.randrange(len(channels))
        size = rng.choice(LARGE) if rng.random() < 0.2 else rng.randrange(2000)
        send(channels[which], (sender, numbers[which], bytes([sender]) * size), rng)
        numbers[which] += 1
    sent.put(numbers)


def consume(channel: Any, which: int, seed: float, seen: Any) -> None:
    """Receive messages until None, slowly at times, and report their number, or what was wrong with one."""
    rng = random.Random(seed)
    receive = channel.recv if hasattr(channel, "recv") else channel.get
    following: dict[int, int] = {}
    while (message := receive()) is not None:
        sender, number, data = message
        if number != following.get(sender, 0) or data != bytes([sender]) * len(data):
            seen.put((which, f"message {number} of {sender} in place of {following.get(sender, 0)}"))
            return
        following[sender] = number + 1
        if rng.random() < 0.02:
            time.sleep(rng.random() * 0.05)
    seen.put((which, sum(following.values())))


def run(seed: int) -> int:
    """Run one random program and return the number of its messages. Raises AssertionError."""
    rng = random.Random(seed)

    def anywhere() -> Policy:
        return Policy(placement=Policy.Placement.HOST_ID, host_id=rng.choice(System().nodes))

    senders = rng.randrange(1, 4)
    ends = []  # the receiving and the sending end of each channel, and whether it may be full
    for _ in range(rng.randrange(1, 4)):
        kind = rng.choice(
            ["pipe", "simple", "bounded", "unlimited"] if senders == 1 else ["simple", "bounded", "unlimited"]
        )
        if kind == "pipe":
            ends.append((*mp.Pipe(duplex=False), False))
        else:
            made = mp.SimpleQueue() if kind == "simple" else mp.Queue(rng.randrange(1, 20) if kind == "bounded" else 0)
            ends.append((made, made, kind == "bounded"))
    sending = [(end, limited) for _, end, limited in ends]
    sent, seen = mp.Queue(), mp.Queue()
    producers = [
        Process(produce, (sender, rng.random(), sending, rng.randrange(50, 300), sent), policy=anywhere())
        for sender in range(senders)
    ]
    consumers = [
        Process(consume, (end, which, rng.random(), seen), policy=anywhere()) for which, (end, _, _) in enumerate(ends)
    ]
    for process in [*producers, *consumers]:
        process.start()
    numbers = [sent.get() for _ in producers]
    for process in producers:
        process.join()
    for way in sending:
        send(way, None, rng)
    totals = [sum(column) for column in zip(*numbers, strict=True)]
    for _ in consumers:
        which, outcome = seen.get()
        assert outcome == totals[which], f"seed {seed}: {outcome} of {totals[which]} messages"
    for process in consumers:
        process.join()
    return sum(totals)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="how long programs are begun (default: 60)")
    parser.add_argument("--seed", type=int, default=0, help="the first program (default: 0)")
    options = parser.parse_args()
    mp.set_start_method("dragon")
    end, seed, messages = time.monotonic() + options.seconds, options.seed, 0
    while time.monotonic() < end:
        messages += run(seed)
        seed += 1
    print(f"programs {options.seed} to {seed - 1}: {messages} messages arrived once and in order")
