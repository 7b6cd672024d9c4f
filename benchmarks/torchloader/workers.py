"""num_workers="auto" beside fixed numbers of workers.

python benchmarks/torchloader/workers.py                       all loads
python benchmarks/torchloader/workers.py latency --rounds 30   one of them, for longer

"auto" searches three times; then the numbers that it found and the fixed ones take turns of a second each, so that what
else runs on the machine disturbs all alike, and each round is a ratio. The trainer waits instead of computing, as one
does that computes on a GPU.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from operator import truediv
from typing import Any

from torchloader import ElasticDataLoader

BATCH = 8


@dataclass
class Stored:
    """Samples of a storage that takes `latency` seconds for a batch of them, and `cpu` seconds of computing. From
    `faster_at` on, by the machine's monotonic clock, the storage is 20 times faster."""

    length: int
    latency: float
    cpu: float = 0.0
    faster_at: float = float("inf")

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        latency = self.latency / 20 if time.monotonic() > self.faster_at else self.latency
        if latency:
            time.sleep(latency / BATCH)
        end = time.thread_time() + self.cpu / BATCH
        while self.cpu and time.thread_time() < end:
            pass
        return index


LONG = 10**6
# The dataset, the seconds that the trainer computes, and the fixed numbers of workers.
LOADS: dict[str, tuple[Stored, float, list[int]]] = {
    "latency": (Stored(LONG, 0.016), 0.002, [1, 4, 6, 8, 10, 12, 16]),
    "cpu": (Stored(LONG, 0.0, 0.008), 0.001, [1, 2, 3, 4, 6]),
    "mixed": (Stored(LONG, 0.010, 0.004), 0.003, [1, 2, 3, 4, 6, 8, 12]),
    "faster": (Stored(LONG, 0.040), 0.004, [1, 2, 4, 8, 12, 16]),
    "short": (Stored(20 * BATCH, 0.016), 0.002, [1, 4, 8, 12, 16]),
}


def step_of(name: str, batches: Iterator[Any], seconds: float) -> float:
    """Train for `seconds`; return the batches per second."""
    start, given = time.perf_counter(), 0
    while time.perf_counter() < start + seconds:
        next(batches)
        time.sleep(LOADS[name][1])
        given += 1
    return given / (time.perf_counter() - start)


def epochs(loader: ElasticDataLoader) -> Iterator[Any]:
    """Yield the batches of one epoch after the other."""
    while True:
        yield from loader


def loader_of(dataset: Stored, workers: Any) -> ElasticDataLoader:
    """Return a loader of lists."""
    return ElasticDataLoader(dataset, BATCH, num_workers=workers, collate_fn=list, seed=1)


def searched(name: str, seconds: float) -> tuple[int, str]:
    """Let "auto" search for `seconds`; return the number that it finds and its explanation. The storage that becomes
    faster does so in the middle.
    """
    dataset = LOADS[name][0]
    if name == "faster":
        dataset = replace(dataset, faster_at=time.monotonic() + seconds / 2)
    with loader_of(dataset, "auto") as loader:
        step_of(name, epochs(loader), seconds)
        return loader.workers, str(loader.tuning)


def compare(name: str, arguments: argparse.Namespace) -> None:
    """Compare what "auto" finds, several times, with all fixed numbers, by turns."""
    found = [searched(name, arguments.search) for _ in range(arguments.searches)]
    numbers = sorted({*LOADS[name][2], *(number for number, _ in found)})
    dataset = LOADS[name][0]
    if name == "faster":
        dataset = replace(dataset, faster_at=0.0)
    rates: dict[int, list[float]] = {number: [] for number in numbers}
    with ExitStack() as stack:
        loaders = {number: stack.enter_context(loader_of(dataset, number)) for number in numbers}
        running = {number: epochs(loader) for number, loader in loaders.items()}
        for batches in running.values():
            step_of(name, batches, 0.1)
        for number, loader in loaders.items():
            while loader.counters.workers < number:
                step_of(name, running[number], 0.1)
        for turn in range(arguments.rounds):
            for place in range(len(numbers)):
                number = numbers[(place + turn) % len(numbers)]
                for _ in range(2 * number + 2):  # leave out batches that were made during others' turns
                    next(running[number])
                rates[number].append(step_of(name, running[number], arguments.seconds))
    median = {number: statistics.median(each) for number, each in rates.items()}
    fixed = LOADS[name][2]
    rounds = [statistics.mean(turn) for turn in zip(*rates.values(), strict=True)]
    best = max(fixed, key=lambda number: statistics.median(map(truediv, rates[number], rounds)))
    for number in numbers:
        parts = sorted(beside(rates, number, best))
        print(
            f"{name:>8} {number:>3} workers {median[number]:8.1f} batches/s, {statistics.median(parts):.3f} of the "
            f"best ({parts[len(parts) // 4]:.3f} to {parts[3 * len(parts) // 4]:.3f})",
            flush=True,
        )
    for number, told in found:
        print(
            f"{name:>8} auto: {statistics.median(beside(rates, number, best)):.3f} of {best} workers; {told}",
            flush=True,
        )


def beside(rates: dict[int, list[float]], number: int, other: int) -> list[float]:
    """Return, for each round, the rate with one number divided by that with another."""
    return list(map(truediv, rates[number], rates[other]))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loads", nargs="*", choices=[[], *LOADS], help="by default all")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="of each turn")
    parser.add_argument("--searches", type=int, default=3)
    parser.add_argument("--search", type=float, default=20.0, metavar="S", help="of each search")
    arguments = parser.parse_args()
    for name in arguments.loads or LOADS:
        compare(name, arguments)


if __name__ == "__main__":
    main()
