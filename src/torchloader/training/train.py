"""Trains the networks of a workload on its datasets: `python -m torchloader.training.train --arch resnet …`.

Runs alone, under torchrun, or as an application of torchloader; with several ranks with DistributedDataParallel.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from dragon.commands import at_least, checked
from torchloader.inputs.job import DEPTHS, EXPECTED, is_dataset
from torchloader.training.models import build
from torchloader.training.session import Session

_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class SyntheticImages(Dataset[tuple[Tensor, int]]):
    """Float32 images with labels, with the shape of CIFAR's: a pattern for each class, with noise. A sample depends
    only on its index; with `augment` half of them are flipped by the random state. Each takes `latency` seconds, as
    from a slow storage, so that loading scales with the workers, not with the cores."""

    def __init__(
        self, length: int, classes: int = 10, image_size: int = 32, augment: bool = False, latency: float = 0.0
    ) -> None:
        self.length, self.classes, self.image_size, self.augment = length, classes, image_size, augment
        self.latency = latency

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not 0 <= index < self.length:
            raise IndexError(f"there is no image {index} of {self.length}")
        if self.latency:
            time.sleep(self.latency)
        label = index % self.classes
        shape = (3, self.image_size, self.image_size)
        image = torch.randn(shape, generator=torch.Generator().manual_seed(index)) / 2
        # Stripes of different width and direction, which a convolution can distinguish.
        wave = torch.sin(torch.arange(self.image_size) * (label // 2 + 1) * 0.3)
        image += wave if label % 2 else wave[:, None]
        if self.augment and random.random() < 0.5:
            image = image.flip(-1)
        return image, label


class JpegFolder(Dataset[tuple[Tensor, int]]):
    """JPEG files in one folder per class: decoded, cropped at random to a square, flipped at random, normalized."""

    def __init__(self, folder: str | Path, image_size: int = 224) -> None:
        self.image_size = image_size
        self.files = sorted(path for path in Path(folder).glob("*/*") if path.suffix.lower() in (".jpg", ".jpeg"))
        if not self.files:
            raise FileNotFoundError(f"no .jpg files in the folders of {folder}: it needs one folder for each class")
        names = sorted({path.parent.name for path in self.files})
        self.classes = len(names)
        self.labels = [names.index(path.parent.name) for path in self.files]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        with Image.open(self.files[index]) as file:
            image = file.convert("RGB")
        side = random.randint((min(image.size) + 1) // 2, min(image.size))
        left, top = random.randint(0, image.width - side), random.randint(0, image.height - side)
        square = image.resize(
            (self.image_size, self.image_size), Image.Resampling.BILINEAR, (left, top, left + side, top + side)
        )
        pixels = torch.frombuffer(bytearray(square.tobytes()), dtype=torch.uint8)
        values = pixels.view(self.image_size, self.image_size, 3).permute(2, 0, 1).float().div_(255)
        if random.random() < 0.5:
            values = values.flip(-1)
        mean, deviation = torch.tensor(_MEAN).view(3, 1, 1), torch.tensor(_DEVIATION).view(3, 1, 1)
        return (values - mean) / deviation, self.labels[index]


_EPOCH = 50_000  # images of an epoch by default


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and return 0. Raises what torch, the data and the session raise."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.start_epoch > options.end_epoch or 0 < options.end_iter <= options.start_iter:
        parser.error("the start must come before the end: see --start-iter, --end-iter, --start-epoch, --end-epoch")
    with Session.join(options.folder, options.device, save_every=options.save_every) as session:
        if options.batch % session.world_size:
            parser.error(f"--batch {options.batch} must be a multiple of the {session.world_size} ranks")
        _share_cores(session)
        _train(session, options)
    return 0


def _train(session: Session, options: argparse.Namespace) -> None:
    dataset, classes = _dataset(options)
    torch.manual_seed(options.seed)
    network = build(options.arch, options.depth, classes, options.image_size).to(session.device)
    loader = session.loader(
        dataset,
        options.batch // session.world_size,
        seed=options.seed,
        shuffle=True,
        drop_last=True,
        num_workers=options.workers,
        pin_memory=session.device.type == "cuda",
    )
    if not len(loader):
        raise SystemExit(f"{len(dataset)} images are fewer than a batch of {options.batch}: give a smaller --batch")
    each = min(options.end_iter or len(loader), len(loader))
    optimizer = torch.optim.SGD(network.parameters(), lr=options.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, each * options.end_epoch)
    session.restore(network, optimizer, scheduler, loader)
    session.skip(loader, options.start_epoch, options.start_iter)
    model: nn.Module = network
    if session.world_size > 1:
        devices = [session.device] if session.device.type == "cuda" else None
        model = nn.parallel.DistributedDataParallel(network, device_ids=devices)
    # Every rank has dropout of its own.
    torch.manual_seed(options.seed + 1 + session.rank)
    with loader:
        while session.epoch <= options.end_epoch:
            for images, labels in session.steps(loader, until=each):
                _step(session, model, optimizer, images, labels, options.step_time)
                scheduler.step()


def _step(
    session: Session, model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor, least: float
) -> None:
    start = time.perf_counter()
    with session.timed("datatransfer"):
        images = images.to(session.device, non_blocking=True)
        labels = labels.to(session.device, non_blocking=True)
    with session.timed("forward"):
        loss = nn.functional.cross_entropy(model(images), labels)
    with session.timed("backward"):
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
    with session.timed("update"):
        optimizer.step()
    session.record(loss)
    if least:
        time.sleep(max(0.0, start + least - time.perf_counter()))


def _share_cores(session: Session) -> None:
    """Divide the cores of a node among its ranks on CPUs, as torchrun does."""
    beside = int(os.environ.get("LOCAL_WORLD_SIZE", session.world_size))
    if session.device.type == "cpu" and beside > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // beside))


def _dataset(options: argparse.Namespace) -> tuple[JpegFolder | SyntheticImages, int]:
    kind, _, argument = options.dataset.partition(":")
    length = options.samples or options.batch * options.end_iter or _EPOCH
    if kind == "jpeg":
        folder = JpegFolder(argument, options.image_size)
        return folder, folder.classes
    latency = float(argument) if kind == "latency" else 0.0
    return SyntheticImages(length, options.classes, options.image_size, True, latency), options.classes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m torchloader.training.train", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--arch", choices=sorted(DEPTHS), required=True)
    add("--depth", type=int, required=True)
    add("--batch", type=at_least(1), required=True, help="samples per iteration, over all ranks")
    add("--start-iter", type=int, default=0, help="iterations of the first epoch that are skipped")
    add("--start-epoch", type=int, default=1)
    add("--end-iter", type=int, default=0, help="iterations of an epoch; by default all the data")
    add("--end-epoch", type=int, default=1)
    kinds = "images (synthetic), latency:SECONDS (synthetic, with a delay per image), or jpeg:FOLDER"
    add("--dataset", type=checked(str, is_dataset, EXPECTED), default="images", metavar="KIND", help=kinds)
    add("--samples", type=int, default=0, help="images of a synthetic dataset; by default those of one epoch")
    add("--classes", type=at_least(1), default=10, help="classes of a synthetic dataset")
    add("--image-size", type=int, default=32, help="side of the images in pixels")
    add("--device", help="cpu, cuda or cuda:N; by default this rank's GPU, or the CPU if there is none")
    add("--workers", type=int, default=2, help="loading workers of each rank, unless torchloader sets them")
    add("--folder", help="the folder of traces and checkpoints, unless torchloader sets it; by default there are none")
    add("--save-every", type=float, default=600.0, metavar="SECONDS", help="seconds between two checkpoints")
    add("--step-time", type=float, default=0.0, metavar="SECONDS", help="the least time of an iteration")
    add("--lr", type=float, default=0.05, help="initial learning rate")
    add("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
