"""The CPU job: convolve many images with SciPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.signal import fftconvolve

# isort: split
from telem import Message, Progress, leave_interrupts_to_main

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

    from numpy.typing import NDArray

# The images are 8-bit grey ones, as cameras give them, and are widened to float64 only one at a time while they are
# convolved. So the data set takes one byte per pixel: 1024^3 bytes are 1024 images of 1024 x 1024.
BYTES_PER_PIXEL = 1

KERNEL_SIZE = 16


@dataclass(frozen=True)
class Images:
    """The data set: every image is made from the seed and its number, in the process that needs it."""

    count: int
    size: int
    seed: int

    def image(self, number: int) -> NDArray[np.float64]:
        pixels = self._random(number).integers(256, size=(self.size, self.size), dtype=np.uint8)
        return pixels.astype(np.float64)

    def kernel(self) -> NDArray[np.float64]:
        weights = self._random(self.count).random((KERNEL_SIZE, KERNEL_SIZE))
        return np.asarray(weights / weights.sum())

    def _random(self, number: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, number))


class Worker:
    """The state that a process of the pool keeps between two images."""

    images: Images
    kernel: NDArray[np.float64]
    messages: Queue[Message]


def number_of_images(memory: int, size: int) -> int:
    return memory // (BYTES_PER_PIXEL * size * size)


def start_worker(images: Images, messages: Queue[Message]) -> None:
    leave_interrupts_to_main()
    Worker.images, Worker.kernel, Worker.messages = images, images.kernel(), messages


def convolve(number: int) -> float:
    """Return the brightest value of one image after smoothing."""
    smooth = fftconvolve(Worker.images.image(number), Worker.kernel, mode="same")
    Worker.messages.put(Progress("scipy images", Worker.images.count))
    return float(smooth.max())
