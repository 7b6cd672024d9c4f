"""Batches without a collate_fn are those of PyTorch's default_collate()."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from torchloader import ElasticDataLoader

torch = pytest.importorskip("torch")

MADE = [
    [(torch.ones(3), 1), (torch.zeros(3), 2)],
    [(1, True), (2, False)],
    [1, 2, 3],
    [1, 2.5],
    [1, np.int32(2)],
    [True, 1],
    [(1,), [2]],
    [((1, torch.ones(2)), "a"), ((2, torch.ones(2)), "b")],
    [torch.ones(2), torch.zeros(2)],
    [{"a": 1}, {"a": 2}],
    [-(2**63), 2**63 - 1],
]
REFUSED = [2 * [torch.ones(2).to_sparse()], [(1, 2), (3,)], [(1, 2), 3], [1, 2**70], [1, "a"]]


@pytest.mark.parametrize("samples", MADE, ids=str)
def test_a_batch_is_that_of_the_default_collate_function(samples: list[Any]) -> None:
    (ours,) = ElasticDataLoader(samples, len(samples))
    theirs = torch.utils.data.default_collate(samples)
    assert (type(ours), str(ours), getattr(ours, "dtype", None)) == (
        type(theirs),
        str(theirs),
        getattr(theirs, "dtype", None),
    )


@pytest.mark.parametrize("samples", REFUSED, ids=str)
def test_samples_that_the_default_collate_function_refuses_raise_its_error(samples: list[Any]) -> None:
    with pytest.raises(Exception) as theirs:
        torch.utils.data.default_collate(samples)
    with pytest.raises(theirs.type):
        list(ElasticDataLoader(samples, 2))


def test_a_function_that_a_program_registers_for_a_type_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = torch.utils.data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(functions, int, lambda batch, **_: sum(batch))
    assert list(ElasticDataLoader([(1, 2), (3, 4)], 2)) == [[4, 6]]
