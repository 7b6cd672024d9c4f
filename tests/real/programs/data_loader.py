"""torch's DataLoader gives the same batches from worker processes as without them."""

from __future__ import annotations

import multiprocessing

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import dragon  # noqa: F401 - makes "dragon" a start method


class Squares(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, length: int) -> None:
        self.data = torch.arange(length * 8, dtype=torch.float32).reshape(length, 8) ** 2

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.data[index], index


class Broken(Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        raise ValueError(f"no element {index}")


def batches(workers: int, persistent: bool = False) -> list[list[torch.Tensor]]:
    loader = DataLoader(
        Squares(50),
        batch_size=8,
        num_workers=workers,
        multiprocessing_context="dragon" if workers else None,
        persistent_workers=persistent,
    )
    return [batch for _ in range(2) for batch in loader]


def main() -> None:
    expected = batches(0)
    for persistent in (False, True):
        received = batches(2, persistent)
        assert len(received) == len(expected)
        for ours, theirs in zip(received, expected, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        received[0][0][0] = -1.0
    context = multiprocessing.get_context("dragon")
    with pytest.raises(ValueError, match="no element"):
        list(DataLoader(Broken(), num_workers=2, multiprocessing_context=context))
    print("ok")


if __name__ == "__main__":
    main()
