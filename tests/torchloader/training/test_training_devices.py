"""The device on which a rank trains, and how several ranks exchange gradients."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from conftest import Site
from torchloader.training.link import choose_device

RANKS = Path(__file__).parents[3] / "benchmarks" / "torchloader" / "gpu.py"
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def test_a_rank_without_a_gpu_trains_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device(None, local_rank=3) == torch.device("cpu")


def test_a_requested_device_is_used() -> None:
    assert choose_device("cpu", local_rank=1) == torch.device("cpu")


@needs_gpu
def test_a_rank_uses_the_gpu_of_its_number_and_shares_if_there_are_fewer() -> None:
    count = torch.cuda.device_count()
    assert [choose_device(None, rank).index for rank in range(count + 1)] == [*range(count), 0]


@needs_gpu
def test_ranks_that_share_a_gpu_exchange_gradients_with_gloo(site: Site) -> None:
    done = site.run(sys.executable, RANKS, "ranks", "--ranks", str(torch.cuda.device_count() + 1), timeout=120)
    assert "by gloo on cuda:0" in done.stdout, done.stderr


@needs_gpu
def test_ranks_with_one_gpu_each_exchange_gradients_with_nccl(site: Site) -> None:
    done = site.run(sys.executable, RANKS, "ranks", "--ranks", str(torch.cuda.device_count()), timeout=120)
    assert "by nccl on cuda:0" in done.stdout, done.stderr
