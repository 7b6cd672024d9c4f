"""num_workers="auto" beside fixed numbers of workers, by turns.

python benchmarks/torchloader/workers.py                      all loads, three rounds
python benchmarks/torchloader/workers.py latency --rounds 1   one of them, once

The trainer waits instead of computing, as one does that computes on a GPU. Rates are batches per second from the end of
the warm-up on, in which workers start and "auto" searches; `at all` has the warm-up in it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
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
    "latency": (Stored(LONG, 0.016), 0.002, [1, 4, 8, 10, 12, 16]),
    "cpu": (Stored(LONG, 0.0, 0.008), 0.001, [1, 2, 3, 4, 6]),
    "mixed": (Stored(LONG, 0.010, 0.004), 0.003, [1, 2, 3, 4, 6, 8, 12]),
    "faster": (Stored(LONG, 0.040), 0.004, [1, 4, 8, 12, 16]),
    "short": (Stored(20 * BATCH, 0.016), 0.002, [1, 4, 8, 12, 16]),
}


def once(name: str, workers: int | str, warm_up: float, seconds: float) -> dict[str, Any]:
    """One run, of this process."""
    dataset, step, _ = LOADS[name]
    start = time.monotonic()
    if name == "faster":
        dataset.faster_at = start + warm_up + seconds / 2
    batches = before = 0
    with ElasticDataLoader(dataset, BATCH, num_workers=workers, collate_fn=list, seed=1) as loader:
        while time.monotonic() < start + warm_up + seconds:
            for _ in loader:
                time.sleep(step)
                batches += 1
                now = time.monotonic() - start
                if now < warm_up:
                    before = batches
                if now > warm_up + seconds:
                    break
        told = str(loader.tuning) if workers == "auto" else ""
        return {
            "rate": (batches - before) / seconds,
            "from_start": batches / (warm_up + seconds),
            "workers": loader.workers,
            "told": told,
        }


def run(name: str, workers: int | str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One run, of a process of its own."""
    command = [sys.executable, __file__, name, "--once", str(workers)]
    command += ["--warm-up", str(arguments.warm_up), "--seconds", str(arguments.seconds)]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def compare(name: str, arguments: argparse.Namespace) -> None:
    """Rounds of all numbers, one after the other."""
    counts: list[int | str] = [*LOADS[name][2], "auto"]
    runs: dict[int | str, list[dict[str, Any]]] = {count: [] for count in counts}
    for number in range(arguments.rounds):
        for place in range(len(counts)):
            count = counts[(place + number) % len(counts)]
            runs[count].append(run(name, count, arguments))
    median = {count: statistics.median(each["rate"] for each in found) for count, found in runs.items()}
    whole = {count: statistics.median(each["from_start"] for each in found) for count, found in runs.items()}
    for count in counts:
        rates = " ".join(f"{each['rate']:.1f}" for each in runs[count])
        print(
            f"{name:>8} {count!s:>5} workers {median[count]:8.1f} batches/s  ({rates})  {whole[count]:8.1f} at all",
            flush=True,
        )
    best = max(counts[:-1], key=lambda count: median[count])
    first = max(counts[:-1], key=lambda count: whole[count])
    took = [each["workers"] for each in runs["auto"]]
    print(
        f"{name:>8} auto has {median['auto'] / median[best]:.3f} of the best fixed number, {best}, with {took} workers "
        f"at the end; {whole['auto'] / whole[first]:.3f} at all (of {first})"
    )
    print(f"{name:>8} {runs['auto'][-1]['told']}", flush=True)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loads", nargs="*", choices=[[], *LOADS], help="by default all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warm-up", type=float, default=8.0, metavar="S")
    parser.add_argument("--seconds", type=float, default=8.0, metavar="S")
    parser.add_argument("--once", metavar="WORKERS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        workers = arguments.once if arguments.once == "auto" else int(arguments.once)
        print(json.dumps(once(arguments.loads[0], workers, arguments.warm_up, arguments.seconds)))
        return
    for name in arguments.loads or LOADS:
        compare(name, arguments)


if __name__ == "__main__":
    main()
