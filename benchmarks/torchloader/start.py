"""What a dataset in memory costs with loading workers, and when the first batch comes, beside PyTorch's loader.

python benchmarks/torchloader/start.py memory     600 MiB of tensors and 4 workers: memory beyond the program's own
python benchmarks/torchloader/start.py paths      a list of 1.2 million paths and 8 workers: the first batch
python benchmarks/torchloader/start.py program    a small dataset and 2 workers: from the program's start on

Each runs in a program of its own, in turn, five times over.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from torchloader import ElasticDataLoader

WAYS = {
    "PyTorch, fork": (DataLoader, "fork"),
    "PyTorch, spawn": (DataLoader, "spawn"),
    "elastic, the default": (ElasticDataLoader, None),
    "elastic, spawn": (ElasticDataLoader, "spawn"),
}


class Rows:
    """A dataset of `size` MiB of numbers, of which each sample reads one row."""

    def __init__(self, size: int) -> None:
        self.rows = torch.ones(size, 1 << 18)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> float:
        return float(self.rows[index].sum())


class Paths:
    """A dataset of file names."""

    def __init__(self, length: int) -> None:
        self.paths = [f"/data/train/class_{number % 1000}/image_{number:08d}.jpg" for number in range(length)]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        return len(self.paths[index])


def memory_of_session() -> float:
    """Return the MiB of all processes of this session; shared memory is divided among the processes that share it."""
    total, own = 0, os.getsid(0)
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (os.getsid(int(entry.name)) == own or _is_of_run(entry)):
                rollup = (entry / "smaps_rollup").read_text()
                total += next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        except (OSError, StopIteration):
            continue
    return total / 1024


def _is_of_run(entry: Path) -> bool:
    """Return whether a process belongs to this process's run, whose agent and its descendants have sessions of their
    own.
    """
    return f"/{os.getpid()}-".encode() in (entry / "cmdline").read_bytes()


def loader_of(way: str, dataset: Any, batch: int, workers: int) -> Any:
    """Return a loader of the kind."""
    kind, context = WAYS[way]
    return kind(dataset, batch, num_workers=workers, persistent_workers=True, multiprocessing_context=context)


def measure(what: str, way: str) -> float:
    """Measure one loader, in a program of its own."""
    if what == "memory":
        loader = loader_of(way, Rows(600), 8, 4)
        before, during = memory_of_session(), 0.0
        for _ in range(2):
            for number, _ in enumerate(loader):
                during = memory_of_session() if number == 70 else during
        return during - before
    dataset = Paths(1_200_000 if what == "paths" else 6400)
    start = time.perf_counter()
    next(iter(loader_of(way, dataset, 64, 8 if what == "paths" else 2)))
    return time.perf_counter() - start


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["memory", "paths", "program"])
    parser.add_argument("--way", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    if options.way is not None:
        print(measure(options.what, options.way), flush=True)
        return
    measured: dict[str, list[float]] = {way: [] for way in options.ways}
    for _ in range(options.repeats):
        for way, values in measured.items():
            command = [sys.executable, "-W", "ignore", __file__, options.what, "--way", way]
            start = time.perf_counter()
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
                assert process.stdout is not None
                told = float(process.stdout.readline())
                values.append(time.perf_counter() - start if options.what == "program" else told)
    for way, values in measured.items():
        low, high, unit = min(values), max(values), "MiB" if options.what == "memory" else "s"
        print(f"{way:24} {statistics.median(values):8.2f} {unit} ({low:.2f} to {high:.2f})", flush=True)


if __name__ == "__main__":
    main()
