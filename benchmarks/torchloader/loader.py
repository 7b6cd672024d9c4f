"""The elastic loader beside PyTorch's, and what a resize costs a trainer.

python benchmarks/torchloader/loader.py throughput     samples/s at equal numbers of workers, in pairs
python benchmarks/torchloader/loader.py unaided        time of a batch without workers, in pairs, and of its seeds
python benchmarks/torchloader/loader.py resize         a trainer's wait after a resize, beside a restart
python benchmarks/torchloader/loader.py overtaking     samples/s of a few slow samples among fast ones, in order and not
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from torchloader import ElasticDataLoader
from torchloader.loader import randomness


class Images(Dataset[Any]):
    """Tensors that take a little computing, or a latency in seconds."""

    def __init__(self, length: int, shape: tuple[int, ...], work: int = 0, latency: float = 0.0) -> None:
        self.length, self.shape, self.work, self.latency = length, shape, work, latency

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.latency:
            time.sleep(self.latency)
        image = torch.full(self.shape, float(index))
        for _ in range(self.work):
            image = image * 1.0001
        return image, index


def rate(loader: Any, epochs: int = 3) -> float:
    """Return the samples per second, after a warm-up epoch."""
    for _ in loader:
        pass
    start, samples = time.perf_counter(), 0
    for _ in range(epochs):
        for _, labels in loader:
            samples += len(labels)
    return samples / (time.perf_counter() - start)


def throughput(repeats: int, counts: list[int]) -> None:
    """Measure loaders in pairs, one after the other, with equal options."""
    print(
        f"{'sample':>14} {'work':>5} {'workers':>7} {'elastic/s':>10} {'PyTorch/s':>10} {'ratio':>6}  (least to most)"
    )
    for shape, length, batch, work in (
        ((16,), 8000, 64, 0),
        ((3, 32, 32), 4000, 64, 0),
        ((3, 32, 32), 4000, 64, 20),
        ((3, 224, 224), 600, 32, 0),
        ((3, 224, 224), 400, 32, 3),
        ((25, 512, 512), 40, 1, 0),
        ((25, 512, 512), 40, 4, 0),
    ):
        for workers in counts:
            pairs = []
            for _ in range(repeats):
                dataset = Images(length, shape, work)
                options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
                with ElasticDataLoader(dataset, batch, seed=1, **options) as ours:
                    elastic = rate(ours)
                pairs.append((elastic, rate(DataLoader(dataset, batch, **options))))
            ratios = sorted(ours / theirs for ours, theirs in pairs)
            ours, theirs = (statistics.median(each) for each in zip(*pairs, strict=True))
            print(
                f"{'x'.join(map(str, shape)):>14} {work:>5} {workers:>7} {ours:>10.0f} {theirs:>10.0f} "
                f"{statistics.median(ratios):>6.2f}  ({ratios[0]:.2f} to {ratios[-1]:.2f})",
                flush=True,
            )


class Numbers(IterableDataset[int]):
    """Whole numbers, as little as a stream can give."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.length))


def seconds_of(loader: Any) -> float:
    """Return the seconds of CPU time of a batch in one epoch, which other programs hardly change."""
    start = time.process_time()
    batches = sum(1 for _ in loader)
    return (time.process_time() - start) / batches


def unaided(repeats: int) -> None:
    """Measure both loaders without workers by turns, and what the random numbers of a batch cost."""
    print(f"{'samples':>12} {'batch':>5} {'elastic, us':>12} {'PyTorch, us':>12} {'ratio':>6}  (least to most)")
    tensors, numbers = Images(40_000, (16,)), Numbers(80_000)
    for name, dataset, batch in (("16 numbers", tensors, 8), ("16 numbers", tensors, 64), ("streamed int", numbers, 8)):
        pairs = []
        for _ in range(repeats):
            ours = seconds_of(ElasticDataLoader(dataset, batch, seed=1))
            pairs.append((ours, seconds_of(DataLoader(dataset, batch))))
        ratios = sorted(theirs / ours for ours, theirs in pairs)
        ours, theirs = (1e6 * statistics.median(each) for each in zip(*pairs, strict=True))
        spread = f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"{name:>12} {batch:>5} {ours:>12.1f} {theirs:>12.1f} {statistics.median(ratios):>6.2f}  {spread}")
    kept, torch_seed = randomness.KeptRandomState(), torch.default_generator.manual_seed
    for what, action in (
        ("seed Python", lambda: random.seed(1 << 40)),
        ("seed NumPy", lambda: numpy.random.seed(1 << 30)),
        ("seed PyTorch", lambda: torch_seed(1 << 40)),
        ("keep and restore", lambda: kept.__enter__() or kept.__exit__()),
    ):
        print(f"{what:>18} {min(timeit.repeat(action, number=1000, repeat=50)) * 1e3:>6.1f} us")


class HeavyTailed(Dataset[Any]):
    """Samples of which every twentieth, at random, takes a hundred times as long as the others: 0.1 s."""

    def __init__(self, length: int) -> None:
        dice = random.Random(1)
        self.seconds = [0.1 if dice.random() < 0.05 else 0.001 for _ in range(length)]

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.seconds[index])
        return torch.full((16,), float(index)), index


def overtaking(repeats: int, counts: list[int]) -> None:
    """Measure both loaders, in order and not, by turns. Print the medians, and the median of each turn's ratios."""
    print(f"{'batch':>5} {'workers':>7} {'elastic/s':>18} {'PyTorch/s':>18}   elastic, not in order by")
    print(f"{'':>13} {'in order':>9} {'not':>8} {'in order':>9} {'not':>8}   its own order  PyTorch's, not in order")
    for batch, length in ((1, 1500), (4, 3000)):
        for workers in (count for count in counts if count):
            dataset, turns = HeavyTailed(length), []
            for _ in range(repeats):
                options: dict[str, Any] = {"num_workers": workers, "persistent_workers": True}
                rates = []
                for in_order in (True, False):
                    with ElasticDataLoader(dataset, batch, seed=1, in_order=in_order, **options) as ours:
                        rates.append(rate(ours, epochs=1))
                for in_order in (True, False):
                    rates.append(rate(DataLoader(dataset, batch, in_order=in_order, **options), epochs=1))
                turns.append(rates)
            ordered, free, their_ordered, their_free = (statistics.median(each) for each in zip(*turns, strict=True))
            own = statistics.median(turn[1] / turn[0] for turn in turns)
            theirs = statistics.median(turn[1] / turn[3] for turn in turns)
            print(
                f"{batch:>5} {workers:>7} {ordered:>9.0f} {free:>8.0f} {their_ordered:>9.0f} {their_free:>8.0f}   "
                f"{own:>13.2f} {theirs:>24.2f}",
                flush=True,
            )


STEP = 0.010
RESTARTED = """
import sys, time, torch
from benchmarks_loader import Images
from torchloader import ElasticDataLoader
if __name__ == "__main__":
    loader = ElasticDataLoader(Images(8000, (3, 32, 32), latency=0.002), 8, num_workers=int(sys.argv[1]), seed=1)
    loader.load_state_dict({"version": 1, "seed": 1, "epoch": 0, "position": 800})
    next(iter(loader))
    print("first batch", flush=True)
"""


def resize(repeats: int) -> None:
    """Measure the trainer's wait for the batches after a resize, and for the first batch of a restarted program."""
    loader = ElasticDataLoader(Images(8000 * repeats, (3, 32, 32), latency=0.002), 8, num_workers=4, seed=1)
    dice = random.Random(1)
    steady: list[float] = []
    after: list[float] = []
    before = loader.counters.waited
    with loader:
        for number, _ in enumerate(loader):
            waited, before = loader.counters.waited - before, loader.counters.waited
            if number > 50:
                (after if number % 20 < 10 else steady).append(waited)
            if number % 20 == 19:
                loader.resize(dice.choice([3, 4, 5, 6, 8]))
            time.sleep(STEP)
    extra = max(0.0, quantile(after, 0.95) - quantile(steady, 0.95))
    folder = os.path.dirname(os.path.abspath(__file__))
    program = RESTARTED.replace("from benchmarks_loader", "sys.path.insert(0, sys.argv[2])\nfrom loader")
    restarts = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", program, "4", folder], check=True, stdout=subprocess.DEVNULL)
        restarts.append(time.perf_counter() - start)
    restart = statistics.median(restarts)
    print(f"a steady batch: {STEP * 1e3:.0f} ms")
    print(
        f"wait for a batch, 95th percentile: steady {quantile(steady, 0.95) * 1e3:.2f} ms, after a resize "
        f"{quantile(after, 0.95) * 1e3:.2f} ms ({len(after)} batches, {len(after) // 10} resizes); mean "
        f"{statistics.mean(after) * 1e3:.3f} ms"
    )
    total = max(1e-4, (statistics.mean(after) - statistics.mean(steady)) * 10)
    print(f"extra wait of one resize, all of its batches: {total * 1e3:.2f} ms; p95 extra {extra * 1e3:.2f} ms")
    print(f"a program started anew, to its first batch: {restart:.2f} s = at least {restart / total:.0f} times as long")


def quantile(values: list[float], q: float) -> float:
    """Return a quantile of values, which need not be sorted."""
    return sorted(values)[int(q * (len(values) - 1))]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["throughput", "unaided", "resize", "overtaking"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2, 4], help="of throughput and overtaking")
    arguments = parser.parse_args()
    if arguments.what == "throughput":
        throughput(arguments.repeats, arguments.workers)
    elif arguments.what == "unaided":
        unaided(arguments.repeats)
    elif arguments.what == "overtaking":
        overtaking(arguments.repeats, arguments.workers)
    else:
        resize(arguments.repeats)
