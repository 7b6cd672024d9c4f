"""Workers as processes and as threads: samples per second of the elastic loader, of PyTorch's, and of threads.

The threads make whole batches of the same dataset, with as many batches ahead, and hand them over without a copy. So
they show what workers as threads could reach. The three take turns.
"""

from __future__ import annotations

import argparse
import io
import statistics
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, default_collate

from torchloader import ElasticDataLoader


class Jpeg:
    """Photographs that are decoded, resized and converted: mostly without the interpreter's lock."""

    length, batch = 600, 32

    def __init__(self) -> None:
        pixels = np.random.default_rng(0).integers(0, 255, (24, 24, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(np.kron(pixels, np.ones((16, 16, 1), np.uint8))).save(file, "JPEG", quality=90)
        self.file = file.getvalue()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        image = Image.open(io.BytesIO(self.file)).convert("RGB").resize((224, 224))
        return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).astype(np.float32) / 255)


class Algebra(Jpeg):
    """A product of matrices for each sample."""

    length, batch = 400, 16

    def __getitem__(self, index: int) -> torch.Tensor:
        matrix = np.full((512, 512), index, np.float32)
        return torch.from_numpy(np.sqrt(matrix @ matrix + 1))


class Python(Jpeg):
    """A loop of the interpreter for each sample."""

    length, batch = 2000, 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([sum(number * index % 7 for number in range(8000))])


class Storage(Jpeg):
    """Samples that wait for a storage."""

    length, batch = 800, 32

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.zeros(1000)


class Large(Jpeg):
    """Samples of 4 MB."""

    length, batch = 200, 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1 << 20,), float(index))


class Small(Jpeg):
    """Samples of four numbers."""

    length, batch = 40_000, 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(4)


def of_threads(dataset: Jpeg, workers: int) -> Iterator[torch.Tensor]:
    """Yield the batches of a dataset, which threads make."""

    def make(first: int) -> torch.Tensor:
        indices = range(first, min(first + dataset.batch, len(dataset)))
        made: torch.Tensor = default_collate([dataset[index] for index in indices])
        return made

    with ThreadPoolExecutor(workers) as pool:
        asked = (pool.submit(make, first) for first in range(0, len(dataset), dataset.batch))
        ahead: deque[Future[torch.Tensor]] = deque(islice(asked, 2 * workers))
        while ahead:
            yield ahead.popleft().result()
            ahead.extend(islice(asked, 1))


def rate(epoch: Callable[[], Iterator[torch.Tensor]]) -> float:
    """Return the samples per second of an epoch."""
    since = time.perf_counter()
    samples = sum(len(batch) for batch in epoch())
    return samples / (time.perf_counter() - since)


def main(words: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="epochs of each (default 5)")
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4], help="numbers of workers (default 2 4)")
    arguments = parser.parse_args(words)
    warnings.filterwarnings("ignore", message="This DataLoader will create")
    torch.set_num_threads(1)
    print("| samples per second | workers | elastic | PyTorch's | threads | threads / elastic |")
    print("|---|---|---:|---:|---:|---:|")
    for kind in (Jpeg, Algebra, Python, Storage, Large, Small):
        dataset = kind()
        for workers in arguments.workers:
            options = {"num_workers": workers, "persistent_workers": True}
            ours, theirs = (make(dataset, dataset.batch, **options) for make in (ElasticDataLoader, DataLoader))
            ways: list[Callable[[], Iterator[torch.Tensor]]] = [
                ours.__iter__,
                theirs.__iter__,
                lambda dataset=dataset, workers=workers: of_threads(dataset, workers),  # type: ignore[misc]
            ]
            for way in ways:
                rate(way)
            rounds = [[rate(way) for way in ways] for _ in range(arguments.rounds)]
            found = [statistics.median(each) for each in zip(*rounds, strict=True)]
            ours.close()
            numbers = " | ".join(f"{each:,.0f}" for each in found)
            print(f"| {kind.__name__} | {workers} | {numbers} | {found[2] / found[0]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
