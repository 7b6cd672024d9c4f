"""What needs a GPU: times by CUDA events, pinned batches beside PyTorch's, ranks that share a device, a resize.

python benchmarks/torchloader/gpu.py events     phases of iterations against kernels of a known length
python benchmarks/torchloader/gpu.py pinned     samples/s on the GPU from pinned batches, in pairs with DataLoader
python benchmarks/torchloader/gpu.py ranks      DistributedDataParallel, by nccl where each rank has a GPU
python benchmarks/torchloader/gpu.py resize     a trainer's wait after a resize
python benchmarks/torchloader/gpu.py train      ResNet-50 on JPEGs: images/s and how busy the GPU is, beside DataLoader
python benchmarks/torchloader/gpu.py together   three such trainings at once that read the same images, and share them
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jpegs import make_jpegs
from loader import Images, quantile
from torch.utils.data import DataLoader

from torchloader import ElasticDataLoader
from torchloader.training.models import build
from torchloader.training.session import Session
from torchloader.training.train import JpegFolder

KERNEL = 0.010  # seconds
BATCH = 128
WARM_UP, SETTLING, MEASURED = 4.0, 12.0, 8.0  # seconds of a training; "auto" searches in those of SETTLING


def cycles_per_second() -> float:
    """Return the frequency of the clock with which torch.cuda._sleep() counts."""
    for _ in range(3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.cuda._sleep(100_000_000)
        end.record()
        torch.cuda.synchronize()
    return 100_000_000 / (start.elapsed_time(end) / 1000)


def events(repeats: int) -> None:
    """Measure iterations of two kernels of a known length, for one of which the program does not wait."""
    cycles = int(KERNEL * cycles_per_second())
    with tempfile.TemporaryDirectory() as folder, Session.join(folder) as session:
        loader = session.loader(Images(64 * repeats, (3, 32, 32)), 8, num_workers=2, pin_memory=True)
        host = []
        with loader:
            for images, _ in session.steps(loader):
                began = time.perf_counter()
                with session.timed("datatransfer"):
                    images.to(session.device, non_blocking=True)
                with session.timed("forward"):
                    torch.cuda._sleep(cycles)
                with session.timed("backward"):
                    torch.cuda._sleep(2 * cycles)
                host.append(time.perf_counter() - began)
        session.close()
        rows = read_iterations(folder)
    for phase, expected in (("datatransfer", None), ("forward", KERNEL), ("backward", 2 * KERNEL)):
        values = [float(row[phase]) for row in rows[5:]]
        told = f", expected {expected * 1e3:.1f} ms" if expected else ""
        print(
            f"{phase:<13} median {statistics.median(values) * 1e3:.3f} ms "
            f"({min(values) * 1e3:.3f} to {max(values) * 1e3:.3f}){told}"
        )
    print(
        f"the program itself: median {statistics.median(host) * 1e3:.3f} ms an iteration of {3 * KERNEL * 1e3:.0f} ms"
    )


def read_iterations(folder: str) -> list[dict[str, str]]:
    """Return the rows of the trace of iterations in a folder."""
    paths = sorted(Path(folder).rglob("trace*iteration*"))
    with paths[0].open() as lines:
        return list(csv.DictReader(lines))


def on_gpu(loader: Any, epochs: int) -> float:
    """Return the samples per second that arrive on the GPU, after a warm-up epoch."""
    samples = 0
    for epoch in range(epochs + 1):
        if epoch == 1:
            torch.cuda.synchronize()
            start, samples = time.perf_counter(), 0
        for images, labels in loader:
            images.to("cuda", non_blocking=True)
            samples += len(labels)
    torch.cuda.synchronize()
    return samples / (time.perf_counter() - start)


def pinned(repeats: int) -> None:
    """Measure loaders in pairs, one after the other; the trainer only copies."""
    batch = next(iter(ElasticDataLoader(Images(64, (3, 32, 32)), 8, num_workers=1, pin_memory=True, seed=1)))
    print(f"a batch is pinned: {batch[0].is_pinned()} and {batch[1].is_pinned()}")
    print(f"{'sample':>12} {'workers':>7} {'elastic/s':>10} {'PyTorch/s':>10} {'ratio':>6}  (least to most)")
    for shape, length, size in (((3, 32, 32), 20000, 64), ((3, 224, 224), 4000, 64), ((3, 512, 512), 1200, 32)):
        for workers in (2, 8, 12):
            pairs = []
            for _ in range(repeats):
                dataset = Images(length, shape)
                with ElasticDataLoader(dataset, size, num_workers=workers, seed=1, pin_memory=True) as ours:
                    elastic = on_gpu(ours, 2)
                theirs = on_gpu(
                    DataLoader(dataset, size, num_workers=workers, persistent_workers=True, pin_memory=True), 2
                )
                pairs.append((elastic, theirs))
            ratios = sorted(ours / theirs for ours, theirs in pairs)
            mine, other = (statistics.median(each) for each in zip(*pairs, strict=True))
            print(
                f"{'x'.join(map(str, shape)):>12} {workers:>7} {mine:>10.0f} {other:>10.0f} "
                f"{statistics.median(ratios):>6.2f}  ({ratios[0]:.2f} to {ratios[-1]:.2f})",
                flush=True,
            )


RANK = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torchloader.training.session import Session
if __name__ == "__main__":
    with Session.join() as session:
        if session.world_size == 1:
            dist.init_process_group("nccl")
        device = session.device
        model = DistributedDataParallel(torch.nn.Linear(64, 64).to(device), device_ids=[device])
        for step in range(20):
            model(torch.full((8, 64), float(session.rank + step), device=device)).sum().backward()
        total = model.module.weight.grad.sum().item()
        print(f"rank {session.rank} by {dist.get_backend()} on {device}: gradients {total:.1f}", flush=True)
        if session.world_size == 1:
            dist.destroy_process_group()
"""


def ranks(count: int) -> None:
    """Start ranks as torchrun does."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
        program.write(RANK)
        program.flush()
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        subprocess.run([*torchrun, f"--nproc-per-node={count}", program.name], timeout=120, check=True)


def resize(repeats: int) -> None:
    """Measure the wait for the batches after a resize, of a trainer whose step is a kernel of 10 ms."""
    cycles = int(KERNEL * cycles_per_second())
    loader = ElasticDataLoader(
        Images(8000 * repeats, (3, 224, 224), latency=0.002), 8, num_workers=6, seed=1, pin_memory=True
    )
    dice = random.Random(1)
    steady, after, before = [], [], loader.counters.waited
    with loader:
        for number, (images, _) in enumerate(loader):
            waited, before = loader.counters.waited - before, loader.counters.waited
            if number > 50:
                (after if number % 20 < 10 else steady).append(waited)
            if number % 20 == 19:
                loader.resize(dice.choice([4, 6, 8, 10, 12]))
            images.to("cuda", non_blocking=True)
            torch.cuda._sleep(cycles)
            torch.cuda.synchronize()
    print(
        f"wait for a batch, 95th percentile: steady {quantile(steady, 0.95) * 1e3:.3f} ms, after a resize "
        f"{quantile(after, 0.95) * 1e3:.3f} ms ({len(after) // 10} resizes); a step {KERNEL * 1e3:.0f} ms"
    )


class Trainer:
    """ResNet-50 in bfloat16 on the GPU, which measures how long each of its steps computes there."""

    def __init__(self) -> None:
        self.model = build("resnet", 50).cuda().to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9)
        self.events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        """Train on one batch. It waits for the step before the last one, as a program that logs its loss does."""
        images = images.to("cuda", non_blocking=True, memory_format=torch.channels_last)
        labels = labels.to("cuda", non_blocking=True)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        end.record()
        self.events.append((start, end))
        if len(self.events) > 2:
            self.events[-3][1].synchronize()

    def train(self, epoch: Iterable[tuple[torch.Tensor, torch.Tensor]], warm_up: float) -> tuple[float, float]:
        """Train for whole epochs: at least `warm_up` seconds, then at least MEASURED. Returns the images per second of
        the latter, and the part of the time in which the GPU computes.
        """
        begun, start, images = time.perf_counter(), 0.0, 0
        while not start or time.perf_counter() - start < MEASURED:
            if not start and time.perf_counter() - begun > warm_up:
                torch.cuda.synchronize()
                self.events.clear()
                start, images = time.perf_counter(), 0
            for each, labels in epoch:
                self.step(each, labels)
                images += len(labels)
        torch.cuda.synchronize()
        elapsed = time.perf_counter() - start
        busy = sum(first.elapsed_time(last) for first, last in self.events) / 1000
        self.events.clear()
        return images / elapsed, busy / elapsed


@contextmanager
def photographs(folder: str | None) -> Iterator[str]:
    """Make the images in a folder, or in a temporary one; images that are there already stay."""
    with tempfile.TemporaryDirectory() as scratch:
        if not folder or not Path(folder).exists():
            make_jpegs(folder or scratch, 2000, 375)
        yield folder or scratch


def dataset_of(folder: str) -> JpegFolder:
    """Return the images of a folder, each four times, so that an epoch takes some seconds."""
    dataset = JpegFolder(folder)
    dataset.files, dataset.labels = dataset.files * 4, dataset.labels * 4
    return dataset


def train(repeats: int, folder: str | None, counts: list[str]) -> None:
    """Train with each loader by turns, with equal numbers of workers; "auto" beside as many as there are cores. First
    with one batch that is on the GPU already.
    """
    with photographs(folder) as images:
        dataset, trainer = dataset_of(images), Trainer()
        batch = (torch.rand(BATCH, 3, 224, 224).cuda(), torch.zeros(BATCH, dtype=torch.long).cuda())
        print("no loading: {:.0f} images/s, {:.0%} busy".format(*trainer.train([batch] * 100, WARM_UP)))
        print(f"{'workers':>7} {'elastic/s':>10} {'busy':>5} {'PyTorch/s':>10} {'busy':>5} {'ratio':>6}", flush=True)
        for count in counts:
            turns, is_auto = [], count == "auto"
            workers = (os.cpu_count() or 1) if is_auto else int(count)
            for _ in range(repeats):
                options: dict[str, Any] = {"pin_memory": True, "persistent_workers": True, "drop_last": True}
                with ElasticDataLoader(
                    dataset, BATCH, shuffle=True, num_workers="auto" if is_auto else workers, seed=1, **options
                ) as ours:
                    mine = trainer.train(ours, SETTLING if is_auto else WARM_UP)
                    told = f"{ours.tuning}, beside PyTorch's {workers}" if is_auto else ""
                theirs = DataLoader(dataset, BATCH, True, num_workers=workers, **options)
                turns.append((*mine, *trainer.train(theirs, WARM_UP)))
            rate, busy, their_rate, their_busy = (statistics.median(each) for each in zip(*turns, strict=True))
            ratio = statistics.median(turn[0] / turn[2] for turn in turns)
            print(
                f"{count:>7} {rate:>10.0f} {busy:>5.0%} {their_rate:>10.0f} {their_busy:>5.0%} {ratio:>6.2f} {told}",
                flush=True,
            )


def train_one(folder: str, workers: int, shared_as: str | None) -> None:
    """Train as one of several programs, and print the images per second and how busy the GPU is with it."""
    with ElasticDataLoader(
        dataset_of(folder),
        BATCH,
        shuffle=True,
        num_workers=workers,
        pin_memory=True,
        seed=1,
        drop_last=True,
        shared_as=shared_as,
    ) as loader:
        print(*Trainer().train(loader, WARM_UP))


def together(repeats: int, folder: str | None) -> None:
    """Train with three programs at once, each with two workers of its own, then with one preparation for all."""
    with photographs(folder) as images:
        for turn in range(repeats):
            for shared_as in ("", f"images-{turn}"):
                words = [sys.executable, __file__, "one", "--folder", images, "--shared-as", shared_as]
                programs = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
                rates = [round(float(program.communicate()[0].split()[0])) for program in programs]
                told = "one preparation" if shared_as else "each its own"
                print(f"{told:>16}: {sum(rates)} images/s {rates}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what",
        choices=["events", "pinned", "ranks", "resize", "train", "together", "one"],
        help="`one` is one of the programs that train together",
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--ranks", type=int, default=2, help="of one job, on this machine's GPUs (default 2)")
    parser.add_argument(
        "--workers", nargs="+", default=["4", "8", "12", "auto"], help="of `train` (default: 4 8 12 auto)"
    )
    parser.add_argument("--folder", help="of JPEGs to train on; made if it does not exist (default: a temporary one)")
    parser.add_argument("--shared-as", help="the preparation that it shares, for `one`")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no GPU that PyTorch can use: this measures what needs one")
    if arguments.what == "ranks":
        ranks(arguments.ranks)
    elif arguments.what == "train":
        train(arguments.repeats, arguments.folder, arguments.workers)
    elif arguments.what == "together":
        together(arguments.repeats, arguments.folder)
    elif arguments.what == "one":
        train_one(arguments.folder, 2, arguments.shared_as or None)
    else:
        {"events": events, "pinned": pinned, "resize": resize}[arguments.what](arguments.repeats)
