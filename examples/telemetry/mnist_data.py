"""Find the handwritten digits: MNIST files in a folder, a mirror of them, or scikit-learn."""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import shutil
import struct
import zlib
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import urlopen

import numpy as np
from tqdm import tqdm

if TYPE_CHECKING:
    from numpy.typing import NDArray

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://raw.githubusercontent.com/fgnt/mnist/master/",
)
SECONDS_PER_ATTEMPT = 5

CHECKSUMS = {
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}


class DataError(Exception):
    """A data file exists but is not what it should be."""


@dataclass(frozen=True)
class Digits:
    """Grey images of 28 x 28 bytes and the digit that each one shows."""

    train_images: NDArray[np.uint8]
    train_labels: NDArray[np.uint8]
    test_images: NDArray[np.uint8]
    test_labels: NDArray[np.uint8]


def default_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "dragon-telemetry-example" / "data"


def load(folder: Path) -> Digits:
    """Return MNIST from `folder`, downloaded into it if necessary, or scikit-learn's digits if that is not possible."""
    try:
        paths = [_find(folder, name) or _download(folder, name) for name in CHECKSUMS]
    except (OSError, HTTPException) as error:
        print(f"No MNIST in {folder} and no way to download it ({error}): using scikit-learn's digits.", flush=True)
        return scikit_learn_digits()
    return Digits(*_read_pair(*paths[:2]), *_read_pair(*paths[2:]))


def read_idx(path: Path, dimensions: int) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes with the given number of dimensions, compressed or not."""
    content = _content(path)
    start = 4 + 4 * dimensions
    magic = bytes((0, 0, 8, dimensions))
    if content[:4] != magic:
        raise DataError(
            f"{path}: an IDX file of this kind begins with {magic.hex()}, this one with {content[:4].hex()}"
        )
    if len(content) < start:
        raise DataError(f"{path}: ends within its header")
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    if len(content) - start != math.prod(shape):
        raise DataError(f"{path}: announces {math.prod(shape)} bytes of data and has {len(content) - start}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def scikit_learn_digits() -> Digits:
    """Return the 1797 digits that come with scikit-learn, enlarged to MNIST's size; the last fifth is for the test."""
    # Only this path needs scikit-learn, and importing it takes a second.
    from scipy.ndimage import zoom
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (zoom(digits.images, (1, 3.5, 3.5), order=1) * (255 / 16)).round().astype(np.uint8)
    labels = digits.target.astype(np.uint8)
    split = len(images) * 4 // 5
    return Digits(images[:split], labels[:split], images[split:], labels[split:])


def _find(folder: Path, name: str) -> Path | None:
    candidates = (folder / name, folder / name.removesuffix(".gz"))
    return next((path for path in candidates if path.exists()), None)


def _download(folder: Path, name: str) -> Path:
    for mirror in MIRRORS:
        try:
            return _fetch(mirror + name, folder / name)
        except (OSError, HTTPException) as error:
            failure = error
    raise failure


def _fetch(url: str, target: Path) -> Path:
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        _copy(url, partial)
        with partial.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != CHECKSUMS[target.name]:
                raise OSError(f"wrong checksum of {url}")
        return partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _copy(url: str, target: Path) -> None:
    with urlopen(url, timeout=SECONDS_PER_ATTEMPT) as response:
        target.parent.mkdir(parents=True, exist_ok=True)
        size = int(response.headers.get("Content-Length", 0))
        with (
            tqdm.wrapattr(response, "read", total=size, desc=url.rpartition("/")[2]) as source,
            target.open("wb") as file,
        ):
            shutil.copyfileobj(source, file)


def _content(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def _read_pair(images_path: Path, labels_path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if images.shape[1:] != (28, 28):
        raise DataError(f"{images_path}: holds images of {images.shape[1]} x {images.shape[2]}, not of 28 x 28")
    if len(images) != len(labels):
        raise DataError(f"{labels_path}: holds {len(labels)} labels for the {len(images)} images of {images_path}")
    return images, labels
