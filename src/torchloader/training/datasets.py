"""Datasets to train on without real data: synthetic images, images with simulated latency, and JPEG files."""

from __future__ import annotations

import random
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

__all__ = ["JpegFolder", "LatencyDataset", "SyntheticImages", "make_jpegs"]

_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class SyntheticImages(Dataset[tuple[Tensor, int]]):
    """Float32 images with labels, with the shape of CIFAR's: a pattern for each class, with noise.

    A sample depends only on its index; with `augment` half of them are flipped by the random state.
    """

    def __init__(self, length: int, classes: int = 10, image_size: int = 32, augment: bool = False) -> None:
        self.length, self.classes, self.image_size, self.augment = length, classes, image_size, augment

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if not 0 <= index < self.length:
            raise IndexError(f"there is no image {index} of {self.length}")
        label = index % self.classes
        shape = (3, self.image_size, self.image_size)
        image = torch.randn(shape, generator=torch.Generator().manual_seed(index)) / 2
        # Stripes of different width and direction, which a convolution can distinguish.
        wave = torch.sin(torch.arange(self.image_size) * (label // 2 + 1) * 0.3)
        image += wave if label % 2 else wave[:, None]
        if self.augment and random.random() < 0.5:
            image = image.flip(-1)
        return image, label


class LatencyDataset(SyntheticImages):
    """Synthetic images from a simulated storage with a delay of `latency` seconds per image.

    Loading scales with the workers, not with the cores.
    """

    def __init__(
        self, length: int, latency: float, classes: int = 10, image_size: int = 32, augment: bool = False
    ) -> None:
        super().__init__(length, classes, image_size, augment)
        self.latency = latency

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(self.latency)
        return super().__getitem__(index)


class JpegFolder(Dataset[tuple[Tensor, int]]):
    """JPEG files in one folder per class: decoded, cropped at random to a square, flipped at random, normalized.

    Raises FileNotFoundError if there are none.
    """

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


def make_jpegs(folder: str | Path, count: int, size: int, classes: int = 10) -> None:
    """Write `count` JPEG files of size by size pixels into folders of `classes` classes, the same ones each time."""
    from PIL import Image

    images = SyntheticImages(count, classes, size)
    for index in range(count):
        values, label = images[index]
        # Coarse noise: fine noise would make files far larger than photographs.
        smooth = torch.nn.functional.avg_pool2d(values[None], 5, 1, 2)[0]
        pixels = smooth.mul(64).add(128).clamp(0, 255).byte().permute(1, 2, 0).contiguous()
        place = Path(folder) / f"class{label:03d}"
        place.mkdir(parents=True, exist_ok=True)
        picture = Image.frombytes("RGB", (size, size), pixels.numpy().tobytes())
        picture.save(place / f"{index:06d}.jpg", quality=85)
