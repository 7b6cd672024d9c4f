"""Data for tiny training runs. Loading workers do not need PyTorch for it, so they start quickly."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np

LENGTH = 48
FEATURES = 6


class Points:
    """Points of two classes, moved a little at random each time."""

    def __init__(self, latency: float = 0.0, length: int = LENGTH) -> None:
        self.latency, self.length = latency, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Any, int]:
        time.sleep(self.latency)
        point = np.random.default_rng(index).standard_normal(FEATURES, dtype=np.float32)
        return point + np.float32(random.random() + np.random.rand()), index % 2


def stacked(samples: list[tuple[Any, int]]) -> tuple[Any, Any]:
    """Collate a batch."""
    return np.stack([point for point, _ in samples]), np.array([label for _, label in samples])
