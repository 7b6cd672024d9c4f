"""Loading workers of a job on other nodes."""

from __future__ import annotations

import logging

import pytest

from torchloader import ElasticDataLoader
from torchloader.training.session import resize, this_node


def test_a_loader_with_a_given_start_method_has_workers_on_its_node_only(caplog: pytest.LogCaptureFixture) -> None:
    with ElasticDataLoader(range(8), num_workers=1, multiprocessing_context="fork") as loader:
        resize(loader, 4, ("there", "there", "elsewhere"))
        assert loader.workers == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "3 of its 4 workers, which were to be on elsewhere, there, are left out" in caplog.text


def test_workers_for_a_lost_node_start_on_this_node() -> None:
    with ElasticDataLoader(range(8), num_workers=1, workers_on=this_node()) as loader:
        resize(loader, 3, ("lost",))
        assert (loader.workers, loader.workers_on) == (3, [this_node()] * 3)


def test_resizing_to_zero_workers_keeps_this_node() -> None:
    with ElasticDataLoader(range(8), num_workers=1, workers_on=this_node()) as loader:
        resize(loader, 0, ())
        assert (loader.workers, loader.workers_on) == (0, this_node())
