"""Makes JPEG files to train on."""

from __future__ import annotations

from pathlib import Path

import torch

from torchloader.training.train import SyntheticImages


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
