"""Datasets that need no download and give the same samples on every machine."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
jpegs = pytest.importorskip("benchmarks.torchloader.jpegs")

from torchloader.training.train import JpegFolder, SyntheticImages  # noqa: E402


def test_a_sample_depends_only_on_its_index() -> None:
    torch.manual_seed(1)
    first = SyntheticImages(10, latency=0.001)[3]
    torch.manual_seed(2)
    second = SyntheticImages(10)[3]
    assert torch.equal(first[0], second[0])
    assert first[1] == second[1] == 3
    assert first[0].shape == (3, 32, 32)
    assert not torch.equal(first[0], SyntheticImages(20)[13][0])


def test_augmentation_depends_on_the_random_state() -> None:
    images = SyntheticImages(10, augment=True)

    def seen(seed: int) -> list[bool]:
        random.seed(seed)
        return [torch.equal(images[0][0], SyntheticImages(10)[0][0]) for _ in range(8)]

    assert seen(1) == seen(1) != seen(2)


def test_an_index_beyond_the_end_is_an_error() -> None:
    with pytest.raises(IndexError, match="image 10 of 10"):
        SyntheticImages(10)[10]


def test_jpeg_files_can_be_made_and_decoded(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    jpegs.make_jpegs(tmp_path, count=6, size=48, classes=3)
    images = JpegFolder(tmp_path, image_size=32)
    assert (len(images), images.classes, images.labels) == (6, 3, [0, 0, 1, 1, 2, 2])
    random.seed(0)
    image, label = images[5]
    assert (image.shape, image.dtype, label, bool(image.std() > 0.1)) == ((3, 32, 32), torch.float32, 2, True)
    random.seed(0)
    assert torch.equal(image, images[5][0])


def test_a_folder_without_images_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="one folder for each class"):
        JpegFolder(tmp_path)
